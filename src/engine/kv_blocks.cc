#include "engine/kv_blocks.h"

#include <ranges>

namespace syncline::engine {

KvBlocks::KvBlocks(std::uint32_t count) : blocks_(count) {
  empty_.reserve(count);
  for (std::uint32_t i = count; i > 0; --i) empty_.push_back(i - 1);
}

std::uint32_t KvBlocks::TakeFree() {
  std::uint32_t block = 0;
  if (!empty_.empty()) {
    block = empty_.back();
    empty_.pop_back();
  } else {
    block = idle_.front();
    idle_.pop_front();
    known_.erase(blocks_[block].published->key);
    blocks_[block].published.reset();
  }
  blocks_[block].holders = 1;
  return block;
}

bool KvBlocks::Grow(std::vector<std::uint32_t>& blocks, std::uint32_t count) {
  if (count <= blocks.size()) return true;
  if (count - blocks.size() > free()) return false;
  while (blocks.size() < count) blocks.push_back(TakeFree());
  return true;
}

void KvBlocks::Release(std::vector<std::uint32_t>& blocks) {
  // In reverse, so that the next sequence gets them in the same order, and so that of a beginning
  // that is shared the end is given up first.
  for (const std::uint32_t number : std::views::reverse(blocks)) {
    Block& block = blocks_[number];
    if (--block.holders > 0) continue;
    if (block.published) {
      block.published->idle = idle_.insert(idle_.end(), number);
    } else {
      empty_.push_back(number);
    }
  }
  blocks.clear();
}

std::vector<std::uint32_t> KvBlocks::Find(std::span<const BlockKey> keys) {
  std::vector<std::uint32_t> found;
  for (const BlockKey& key : keys) {
    const auto known = known_.find(key);
    if (known == known_.end()) break;
    Block& block = blocks_[known->second];
    if (block.holders++ == 0) idle_.erase(block.published->idle);
    found.push_back(known->second);
  }
  return found;
}

void KvBlocks::Publish(std::uint32_t block, const BlockKey& key, std::vector<VersionSpan> spans) {
  if (!known_.try_emplace(key, block).second) return;
  blocks_[block].published = std::make_unique<Published>(Published{key, std::move(spans), {}});
}

void KvBlocks::Forget() {
  for (const auto& [key, block] : known_) blocks_[block].published.reset();
  known_.clear();
  empty_.insert(empty_.end(), idle_.rbegin(), idle_.rend());
  idle_.clear();
}

}  // namespace syncline::engine
