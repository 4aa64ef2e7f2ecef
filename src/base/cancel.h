// A flag that one thread (or a signal handler) sets and long work checks between its steps.
#pragma once

#include <atomic>

#include "base/error.h"

namespace syncline::base {

// Thread-safe and async-signal-safe.
class CancelToken {
 public:
  CancelToken() = default;
  // Is cancelled with `parent` (may be null; must outlive it), but not the other way round: for one
  // piece of work that may be ended by itself.
  explicit CancelToken(const CancelToken* parent) : parent_(parent) {}

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const {
    return cancelled_.load(std::memory_order_relaxed) ||
           (parent_ != nullptr && parent_->cancelled());
  }

  Status Check() const {
    if (cancelled()) return Fail(Code::kCancelled, "cancelled");
    return {};
  }

 private:
  const CancelToken* parent_ = nullptr;
  std::atomic<bool> cancelled_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace syncline::base
