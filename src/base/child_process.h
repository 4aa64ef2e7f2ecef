// A program that runs as our child and talks over its standard input and output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"

namespace syncline::base {

// Not thread-safe. The child has its own process group, default signal handling and standard error
// of ours, and inherits no other descriptor. No other child inherits our ends of its pipes.
class ChildProcess {
 public:
  // `command`: the program, looked up in PATH, and its arguments.
  static Result<ChildProcess> Spawn(const std::vector<std::string>& command);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills the child if End was not called

  int pid() const { return pid_; }
  int input() const { return input_; }    // what we write is the child's standard input
  int output() const { return output_; }  // what we read; both descriptors never block

  // Closes the pipes, gives the child `grace` to end by itself, kills its process group and waits
  // for the child. Says how it ended: "exit status 1" or "signal 9".
  std::string End(std::chrono::milliseconds grace);

 private:
  ChildProcess(int pid, int input, int output) : pid_(pid), input_(input), output_(output) {}
  void ClosePipes();

  int pid_ = 0;  // 0: ended
  int input_ = -1;
  int output_ = -1;
};

}  // namespace syncline::base
