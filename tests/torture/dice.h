// The source of chance of one case: the same seed always gives the same case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace syncline::torture {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Seed() { return random_(); }
  // In [0, count); 0 for count 0.
  std::uint64_t Below(std::uint64_t count) { return count == 0 ? 0 : random_() % count; }
  // In [low, high].
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    return low + Below(high - low + 1);
  }
  bool Percent(std::uint64_t percent) { return Below(100) < percent; }
  template <typename Range>
  const auto& Pick(const Range& range) {
    return range[Below(std::size(range))];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace syncline::torture
