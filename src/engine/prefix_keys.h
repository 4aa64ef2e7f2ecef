// Names for the content of full cache blocks: what is computed of the same tokens, after the same
// beginning, under the same weights, has the same name.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace syncline::engine {

// A BLAKE3 hash: nobody can find other tokens for a key, so equal keys need no second look.
using BlockKey = std::array<std::uint8_t, 32>;

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const {
    std::size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// The keys of one sequence, computed when they are asked for.
//
//   key 0     hash of: u64 epoch, the partition's hash, the tokens of block 0
//   key n     hash of: key n - 1, the tokens of block n
class PrefixKeys {
 public:
  // `epoch`: which weights; `partition`: only equal ones may share.
  PrefixKeys(std::uint64_t epoch, std::string_view partition);

  std::uint64_t epoch() const { return epoch_; }

  // One key for each full block of `tokens`. In all calls they begin with the same tokens, as far as
  // they go.
  std::span<const BlockKey> Of(std::span<const text::TokenId> tokens);

 private:
  std::uint64_t epoch_;
  std::vector<BlockKey> keys_;  // the first is no block's: what key 0 continues
};

}  // namespace syncline::engine
