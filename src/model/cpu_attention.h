// Attention over a paged key-value cache, for the query heads of one or several consecutive
// positions that share a key head. Keys and values are read where they lie.
//
// A context is divided into parts of kAttentionPart tokens, which can be computed in any order and
// on any thread, and then merged. The division follows from the positions alone, so a position's
// result does not depend on the number of threads, on other sequences, or on what is computed
// beside it. (Milakov and Gimelshein, 2018; Dao et al., "Flash-Decoding", 2023.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/batch.h"
#include "model/cpu_block_fetcher.h"
#include "model/cpu_types.h"

namespace syncline::model {

inline constexpr std::size_t kAttentionPart = std::size_t{8} * kKvBlock;

template <typename T>
struct AttentionPart {
  const T* query = nullptr;  // [positions · group, head_size]
  std::size_t positions = 0;
  std::size_t group = 0;  // query heads of a position
  std::size_t head_size = 0;
  const T* keys = nullptr;                // [head_size], of the key head in the cache's first slot
  const T* values = nullptr;              // likewise
  std::size_t slot_stride = 0;            // elements from one slot to the next
  const std::uint32_t* blocks = nullptr;  // of the part's tokens, kKvBlock slots each
  // Tokens of the part that the first position sees, at least 1. Each further position sees one
  // more, up to kAttentionPart.
  std::size_t tokens = 0;
  float scale = 1;  // of the scores
};

// Of each head: the mix of values, not yet divided by the sum of its weights; the highest score;
// the sum of weights.
struct PartResult {
  float* mixed = nullptr;    // [positions · group, head_size]
  float* highest = nullptr;  // [positions · group]
  float* sums = nullptr;     // likewise
};

// `next`: what the caller reads afterwards; advanced by FetchSteps steps at least.
void AttendPart(const AttentionPart<Bf16>& part, BlockFetcher& next, const PartResult& result);
void AttendPart(const AttentionPart<float>& part, BlockFetcher& next, const PartResult& result);
inline std::size_t FetchSteps(std::size_t tokens) { return 2 * tokens; }

// The attention of `heads` heads over all their parts, rounded, into out [heads, head_size].
// `first` is the result of the first part, which is used up; those of the others follow at `stride`
// floats from each other.
void MergeParts(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                std::size_t head_size, Bf16* out);
void MergeParts(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                std::size_t head_size, float* out);

}  // namespace syncline::model
