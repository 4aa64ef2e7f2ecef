// What the layers of a decoder have between their first norm and the output projection, and the
// cache that goes with it: one implementation for each kind of attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model/batch.h"
#include "model/parameter_tensors.h"

namespace syncline::model {

// One step through all layers.
class AttentionPass {
 public:
  virtual ~AttentionPass() = default;
  // `x`: [rows, hidden], normed. Stores what later steps need in the cache, and returns each row's
  // mix of values of this rank's heads: [rows, local heads · value size]. In order of the layers.
  virtual at::Tensor Attend(std::size_t layer, const at::Tensor& x) = 0;
};

// Throws what ATen throws. One thread at a time.
class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;

  // Bytes of the cache for one token, over all layers.
  virtual std::uint64_t CacheBytesPerToken() const = 0;
  // Memory for blocks of kKvBlock tokens; replaces what was there. Nothing is left of the cache
  // where it throws.
  virtual void Reserve(std::uint32_t blocks) = 0;
  // The batch must outlive the pass.
  virtual std::unique_ptr<AttentionPass> Begin(const Batch& batch) = 0;
  // Computes the derived parameters from the others in that memory, which may be the live one.
  virtual void Derive(const ParameterTensors& /*memory*/) const {}
};

}  // namespace syncline::model
