// The blocks of the key-value cache: who holds them, and which of them others may find.
//
// A block is held by one sequence or by several, or free. A full one can be published under a key
// that names its content: whoever looks for that content may hold it too, to read it. A published
// block that nobody holds stays until its memory is needed, the least recently used first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/prefix_keys.h"
#include "engine/request.h"

namespace syncline::engine {

// Of one thread. Free blocks are handed out last freed first, and published ones only after them, so
// that a lightly loaded engine touches little memory.
class KvBlocks {
 public:
  explicit KvBlocks(std::uint32_t count);

  std::uint32_t total() const { return static_cast<std::uint32_t>(blocks_.size()); }
  // That nobody holds, so that Grow can give them.
  std::uint32_t free() const { return static_cast<std::uint32_t>(empty_.size() + idle_.size()); }

  // Makes `blocks` at least `count` long. False, and nothing changes, if too few are free.
  bool Grow(std::vector<std::uint32_t>& blocks, std::uint32_t count);
  // Lets go of all.
  void Release(std::vector<std::uint32_t>& blocks);

  // The published blocks of the longest beginning of `keys`; the caller holds them from now on.
  std::vector<std::uint32_t> Find(std::span<const BlockKey> keys);
  // What the weights were that computed a published block, by positions in the sequence.
  const std::vector<VersionSpan>& spans(std::uint32_t block) const {
    return blocks_[block].published->spans;
  }
  // `block`, which the caller holds, will not change any more. Nothing if the content is known.
  void Publish(std::uint32_t block, const BlockKey& key, std::vector<VersionSpan> spans);
  // Nothing that is published now will be found.
  void Forget();

 private:
  struct Published {
    BlockKey key;
    std::vector<VersionSpan> spans;
    std::list<std::uint32_t>::iterator idle;  // while nobody holds it
  };
  struct Block {
    std::uint32_t holders = 0;
    std::unique_ptr<Published> published;
  };

  std::uint32_t TakeFree();

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> empty_;  // free, not published
  std::list<std::uint32_t> idle_;     // free, published; the one to be given up first
  std::unordered_map<BlockKey, std::uint32_t, BlockKeyHash> known_;
};

}  // namespace syncline::engine
