// What a layer of a decoder has after its second norm: one implementation for each kind.
#pragma once

#include <ATen/core/Tensor.h>

namespace syncline::model {

// Throws what ATen throws. One thread at a time.
class MlpBlock {
 public:
  virtual ~MlpBlock() = default;
  // x: [rows, hidden], normed. This rank's part of the result, of which the sum over all ranks is
  // the result: [rows, hidden], contiguous, in fp32 or, of a single rank, in the type of x.
  virtual at::Tensor Run(const at::Tensor& x) const = 0;
};

}  // namespace syncline::model
