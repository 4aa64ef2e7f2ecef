// A flag that one thread (or a signal handler) sets and long work checks between its steps.
#pragma once

#include <atomic>

#include "base/error.h"

namespace syncline::base {

// Thread-safe and async-signal-safe.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  Status Check() const {
    if (cancelled()) return Fail(Code::kCancelled, "cancelled");
    return {};
  }

 private:
  std::atomic<bool> cancelled_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace syncline::base
