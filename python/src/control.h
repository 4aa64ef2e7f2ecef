// What another thread can do to a call at work: `_core.Control`.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/progress.h"

namespace syncline::python {

// Of one call. Thread-safe.
class Control {
 public:
  struct State {
    std::string phase;  // empty: nothing has begun
    std::uint64_t done = 0;
    std::uint64_t total = 0;  // bytes; 0: not known
  };

  base::CancelToken& cancel() { return cancel_; }
  base::Progress& progress() { return progress_; }
  State state() const {
    const std::scoped_lock lock(mutex_);
    return state_;
  }

 private:
  void Tell(std::string_view phase, std::uint64_t done, std::uint64_t total) {
    const std::scoped_lock lock(mutex_);
    state_ = {std::string(phase), done, total};
  }

  base::CancelToken cancel_;
  mutable std::mutex mutex_;
  State state_;
  base::Progress progress_{[this](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    Tell(phase, done, total);
  }};
};

}  // namespace syncline::python
