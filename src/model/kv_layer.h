// The key-value cache of one layer, and the sizes of attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

#include "model/batch.h"

namespace syncline::model {

struct AttentionSizes {
  std::int64_t heads = 0;  // a multiple of kv_heads
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t window = 0;  // tokens that one sees, itself included; 0: all
  double scale = 0;         // of the scores; 0: 1 / sqrt(head_size)

  double Scale() const {
    return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_size));
  }
};

// Keys and values of one layer, by token slot: [slots, kv_heads, head_size], contiguous.
struct KvLayer {
  at::Tensor keys;
  at::Tensor values;
};

// Where token `position` of a sequence lies.
inline std::int64_t SlotOf(const SequenceSlice& sequence, std::int64_t position) {
  return std::int64_t{sequence.blocks[static_cast<std::size_t>(position / kKvBlock)]} * kKvBlock +
         position % kKvBlock;
}

}  // namespace syncline::model
