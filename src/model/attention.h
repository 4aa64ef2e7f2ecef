// Attention over a paged key-value cache, for a step that mixes decoding sequences (one row each)
// and pieces of prompts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "model/gathered_attention.h"
#include "model/kv_layer.h"
#include "model/paged_attention.h"
#include "model/rope.h"

namespace syncline::model {

// By position, for each pair of dimensions: fp32 [positions, head_size / 2].
struct RotaryTables {
  at::Tensor cosine;
  at::Tensor sine;
};

// For the rotary embedding of heads of that size, at positions below `positions`.
RotaryTables MakeRotaryTables(const RopeConfig& rope, std::uint32_t head_size,
                              std::uint32_t positions);

// What all layers of one step share: where rows are written and which slots each sequence reads.
// The batch must outlive it.
class AttentionStep {
 public:
  // kFastest takes the CPU kernels where they serve the device and type of `options`, kReference
  // only ATen's operations.
  enum class Path { kFastest, kReference };

  // `options`: type and device of queries, keys and values. Throws std::out_of_range where a
  // sequence has too few blocks for its tokens or goes beyond the rotary tables.
  AttentionStep(const Batch& batch, const AttentionSizes& sizes, const RotaryTables& rotary,
                const at::TensorOptions& options, Path path = Path::kFastest);

  // `qkv`: [rows, (heads + 2 · kv_heads) · head_size], each row's queries, keys and values;
  // overwritten. Rotates queries and keys by their positions, stores keys and values in `layer`,
  // and returns each row's mix of values over all earlier positions of its sequence and its own:
  // [rows, heads · head_size]. Throws std::out_of_range where `layer` lacks a block.
  at::Tensor Attend(const at::Tensor& qkv, const KvLayer& layer);

  // The parts of it, for attention that rotates and stores in its own way.
  //
  // Int64 [rows], on the device of the step: each row's position, and the slot for its keys and
  // values. CheckSlots throws std::out_of_range where `layer` lacks a block.
  at::Tensor Positions() const;
  at::Tensor Slots() const;
  void CheckSlots(const KvLayer& layer) const;
  // As Attend, of keys and values that are in `layer`. `queries`: [rows, n], contiguous, of which
  // each row begins with its queries; `keys` and `values`: those of the rows, [rows, kv_heads,
  // head_size].
  at::Tensor Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                 const KvLayer& layer);

 private:
  void AddSequences(const Batch& batch);
  template <typename T>
  void RotateAndStore(const at::Tensor& qkv, const KvLayer& layer) const;
  at::Tensor RotateAndStoreByReference(const at::Tensor& qkv, const KvLayer& layer) const;

  AttentionSizes sizes_;
  RotaryTables rotary_;
  at::TensorOptions options_;
  bool has_kernels_;
  PagedAttention paged_;
  GatheredAttention gathered_;
  std::vector<std::int64_t> positions_;  // of each row
  std::vector<std::int64_t> slots_;      // likewise, where its keys and values go
  std::int64_t slots_needed_ = 0;
};

}  // namespace syncline::model
