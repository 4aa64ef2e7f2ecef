// Two pieces of work that go on at the same time, shown one after the other.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/progress.h"

namespace syncline::replica {

// The first is shown until all its bytes are done, then the second from where it is.
class OverlappingProgress {
 public:
  // `shown` must outlive it, and is used by nobody else meanwhile.
  explicit OverlappingProgress(base::Progress& shown);
  OverlappingProgress(const OverlappingProgress&) = delete;
  OverlappingProgress& operator=(const OverlappingProgress&) = delete;

  base::Progress& first() { return first_; }
  base::Progress& second() { return second_; }
  // There is no first one (any more).
  void EndFirst();

 private:
  struct State {
    std::string_view phase;
    std::uint64_t done = 0;
    std::uint64_t total = 0;
  };
  void Show(const State& state);  // with mutex_ held

  base::Progress& shown_;
  std::mutex mutex_;
  bool first_ended_ = false;      // guarded by mutex_
  std::optional<State> showing_;  // guarded by mutex_; nothing: nothing yet
  base::Progress first_;
  base::Progress second_;
};

}  // namespace syncline::replica
