// Which blocks of the key-value cache are free.
#pragma once

#include <cstdint>
#include <vector>

namespace syncline::engine {

// Blocks are handed out last freed first, so that a lightly loaded engine touches little memory.
class KvBlocks {
 public:
  explicit KvBlocks(std::uint32_t count);

  std::uint32_t total() const { return total_; }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

  // Makes `blocks` at least `count` long. False, and nothing changes, if too few are free.
  bool Grow(std::vector<std::uint32_t>& blocks, std::uint32_t count);
  // Takes all back.
  void Release(std::vector<std::uint32_t>& blocks);

 private:
  std::uint32_t total_;
  std::vector<std::uint32_t> free_;
};

}  // namespace syncline::engine
