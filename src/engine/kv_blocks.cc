#include "engine/kv_blocks.h"

namespace syncline::engine {

KvBlocks::KvBlocks(std::uint32_t count) : total_(count) {
  free_.reserve(count);
  for (std::uint32_t i = count; i > 0; --i) free_.push_back(i - 1);
}

bool KvBlocks::Grow(std::vector<std::uint32_t>& blocks, std::uint32_t count) {
  if (count <= blocks.size()) return true;
  if (count - blocks.size() > free_.size()) return false;
  while (blocks.size() < count) {
    blocks.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvBlocks::Release(std::vector<std::uint32_t>& blocks) {
  // In reverse, so that the next sequence gets them in the same order.
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) free_.push_back(*it);
  blocks.clear();
}

}  // namespace syncline::engine
