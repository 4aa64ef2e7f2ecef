// Starting a program as a child process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace syncline::base {

struct SpawnOptions {
  std::vector<std::string> command;  // the program, looked up in PATH if it has no slash; arguments
  std::optional<std::vector<std::string>>
      environment;           // "NAME=value"; nothing: that of this process
  int standard_input = -1;   // a descriptor; -1: /dev/null
  int standard_output = -1;  // a descriptor; -1: that of this process
};

// The child has a process group of its own (Ctrl-C in a terminal reaches only this process), default
// signal handling, and no other descriptor of this process but standard error. Returns its pid, to be
// waited for. Errors name the program.
Result<int> Spawn(const SpawnOptions& options);

}  // namespace syncline::base
