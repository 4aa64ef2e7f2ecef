// Brings blocks of the key-value cache into the processor's second cache while something else is
// computed.
//
// A sequence's blocks lie anywhere, so the processor does not foresee them. Asked for all at once
// they would hold up the loads of the computation that is under way; so they are asked for a few
// lines at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace syncline::model {

class BlockFetcher {
 public:
  BlockFetcher() = default;  // has nothing to fetch

  // `count` blocks, each of `block_bytes` from `keys` and as many from `values` on, block 0 lying
  // at their beginning. Everything will have been asked for after `steps` steps.
  BlockFetcher(const void* keys, const void* values, const std::uint32_t* blocks, std::size_t count,
               std::size_t block_bytes, std::size_t steps)
      : keys_(reinterpret_cast<std::uintptr_t>(keys)),
        values_(reinterpret_cast<std::uintptr_t>(values)),
        blocks_(blocks),
        rest_(count),
        block_bytes_(block_bytes) {
    const std::size_t lines = 2 * count * (block_bytes / kLine + 1);
    lines_ = std::min(kMostLines, (lines + steps - 1) / steps);
  }

  void Step() {
    for (std::size_t i = 0; i < lines_; ++i) {
      if (at_ >= end_ && !NextRun()) return;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): it may lie beyond the memory it began in
      __builtin_prefetch(reinterpret_cast<const void*>(at_), /*rw=*/0, /*locality=*/2);
      at_ += kLine;
    }
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kMostLines = 16;  // in one step

  // The keys of a block, then its values.
  bool NextRun() {
    if (rest_ == 0) {
      lines_ = 0;
      return false;
    }
    at_ = (values_next_ ? values_ : keys_) + *blocks_ * block_bytes_;
    end_ = at_ + block_bytes_;
    if (values_next_) {
      ++blocks_;
      --rest_;
    }
    values_next_ = !values_next_;
    return true;
  }

  std::uintptr_t keys_ = 0;
  std::uintptr_t values_ = 0;
  const std::uint32_t* blocks_ = nullptr;
  std::size_t rest_ = 0;  // blocks
  std::size_t block_bytes_ = 0;
  std::size_t lines_ = 0;  // of a step
  bool values_next_ = false;
  std::uintptr_t at_ = 0;
  std::uintptr_t end_ = 0;
};

}  // namespace syncline::model
