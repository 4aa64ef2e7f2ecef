// A program beside us for what must not be done in our own process: libraries that end it when a peer
// sends the wrong thing, or that hold a thread for as long as a peer likes. It is asked one question at
// a time, and answers each: a line of JSON on its standard input, a line on its standard output.
//
// Memory is shared by name: SharedName(descriptor) can be opened by the helper and mapped.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/json.h"

namespace syncline::transport {

class HelperProcess {
 public:
  // `command`: the program and its arguments. `name`: what it is called in messages.
  static base::Result<std::unique_ptr<HelperProcess>> Start(const std::vector<std::string>& command,
                                                            std::string name);
  virtual ~HelperProcess() = default;  // ends the helper

  // Sends `question` and waits for the answer. One caller at a time. An answer {"error": text} is
  // kUnavailable with that text. Where no answer comes (kUnavailable: the helper has ended, by itself or
  // by Kill; kTimeout; kCancelled) the helper is gone afterwards.
  virtual base::Result<base::Json> Ask(const base::Json& question,
                                       std::chrono::milliseconds timeout,
                                       const base::CancelToken* cancel) = 0;

  // Thread-safe. An Ask that waits fails with `reason` now, as does every later one, and ends the helper.
  virtual void Kill(const std::string& reason) = 0;
};

// A path under which another process of the same user can open the file behind a descriptor of ours.
std::string SharedName(int descriptor);

// "NAME beside the program that is running": where our helper programs lie.
base::Result<std::string> HelperPath(const std::string& name);

}  // namespace syncline::transport
