// What a layer of a decoder has after its second norm: one implementation for each kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace syncline::model {

// Throws what ATen throws. One thread at a time.
class MlpBlock {
 public:
  virtual ~MlpBlock() = default;
  // x: [rows, hidden], normed. This rank's part of the result, of which the sum over all ranks is
  // the result: [rows, hidden], contiguous, in fp32 or, of a single rank, in the type of x.
  // `chosen`, if not null, takes the experts of each row, [rows · per token]; a block that has none
  // leaves it.
  virtual at::Tensor Run(const at::Tensor& x, std::vector<std::uint32_t>* chosen) const = 0;
};

}  // namespace syncline::model
