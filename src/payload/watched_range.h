// A mapped range that its other owner may cut short while it is used. Touching what is gone ends a
// process with SIGBUS; here such a page reads as zeros from then on, and the range says so.
//
// The first object installs a handler for SIGBUS, which passes on what is not in a watched range to
// the handler that was there before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace syncline::payload {

// Thread-safe. Must be destroyed before the range is unmapped.
class WatchedRange {
 public:
  // `start` and the size of a whole mapping.
  WatchedRange(void* start, std::size_t size);
  ~WatchedRange();
  WatchedRange(const WatchedRange&) = delete;
  WatchedRange& operator=(const WatchedRange&) = delete;

  // Has a page been touched that is not there any more?
  bool broken() const { return broken_.load(); }

 private:
  friend bool MendPage(std::uintptr_t address);

  std::uintptr_t begin_;
  std::uintptr_t end_;
  std::atomic<bool> broken_ = false;
};

}  // namespace syncline::payload
