// Attention on the CPU kernels, in bf16 and fp32: reads keys and values from the cache's blocks,
// without gathering or padding. It knows no windows. The result of a row does not depend on the batch around it or on
// the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "model/kv_layer.h"

namespace syncline::model {

// The work of a step, in tasks that are the same for all layers.
class PagedAttention {
 public:
  // One to kTileRows rows of a sequence, over all or one of the parts (cpu_attention.h) of their
  // context.
  struct Task {
    std::int64_t row = 0;
    std::int64_t rows = 0;
    std::int64_t context = 0;  // tokens that the first row sees
    const std::uint32_t* blocks = nullptr;
    std::int64_t first_part = 0;
    std::int64_t parts = 0;
    // First float of the results, which are merged later; -1: merged at once
    std::int64_t result = -1;
  };

  explicit PagedAttention(const AttentionSizes& sizes) : sizes_(sizes) {}

  // All rows of a sequence, whose blocks must outlive this object.
  void Add(const SequenceSlice& sequence);

  // queries: [rows, n], contiguous; each row begins with its heads · head_size queries. Keys and
  // values are in `layer` already. Writes the rows that were added into `out`, [rows, heads ·
  // head_size].
  void Attend(const at::Tensor& queries, const KvLayer& layer, const at::Tensor& out);

 private:
  void AddTask(const Task& task);
  template <typename T>
  void Attend(const T* queries, std::int64_t row_size, const KvLayer& layer, T* out);
  // Units of work are the pairs of a task and a key head, in this order: the first unit that does
  // not begin before `cost`.
  std::int64_t UnitAt(std::int64_t cost) const;

  AttentionSizes sizes_;
  std::vector<Task> tasks_;
  // Of tasks up to and with this one: pairs of a row and a token
  std::vector<std::int64_t> cost_until_;
  std::vector<Task> divided_;   // rows whose parts are tasks of their own
  std::vector<float> results_;  // of those: [task, key head, part, …]
};

}  // namespace syncline::model
