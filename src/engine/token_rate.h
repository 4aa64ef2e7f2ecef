// Tokens per second over the last ten seconds.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace syncline::engine {

// Of one thread.
class TokenRate {
 public:
  void Add(std::uint32_t tokens) {
    MoveOn();
    buckets_[now_ % kSeconds] += tokens;
  }

  // Over the seconds that are complete.
  double PerSecond() {
    MoveOn();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kSeconds; ++i) {
      if (static_cast<std::int64_t>(i) != now_ % kSeconds) sum += buckets_[i];
    }
    return static_cast<double>(sum) / (kSeconds - 1);
  }

 private:
  static constexpr std::int64_t kSeconds = 11;

  void MoveOn() {
    const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count();
    for (std::int64_t i = 0; i < kSeconds && now_ < now; ++i) buckets_[++now_ % kSeconds] = 0;
    now_ = now;
  }

  std::array<std::uint64_t, kSeconds> buckets_ = {};
  std::int64_t now_ = 0;
};

}  // namespace syncline::engine
