#include "model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/sin.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/cpu_rotary.h"
#include "model/ops.h"
#include "model/parallel.h"

namespace syncline::model {
namespace {

at::Tensor Indices(const std::vector<std::int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<std::int64_t*>(values.data()),
                       {static_cast<std::int64_t>(values.size())}, at::kLong)
      .to(device);
}

void Check(const SequenceSlice& sequence, std::int64_t positions) {
  if (sequence.context > positions) {
    throw std::out_of_range(fmt::format("a sequence of {} tokens, of at most {} positions",
                                        sequence.context, positions));
  }
  if (sequence.blocks.size() * kKvBlock < sequence.context) {
    throw std::out_of_range(fmt::format("a sequence of {} tokens has {} blocks of {}",
                                        sequence.context, sequence.blocks.size(), kKvBlock));
  }
}

}  // namespace

RotaryTables MakeRotaryTables(const RopeConfig& rope, std::uint32_t head_size,
                              std::uint32_t positions) {
  std::vector<float> frequencies = InverseFrequencies(rope, head_size);
  const at::Tensor angles =
      at::outer(at::arange(std::int64_t{positions}, at::kFloat),
                at::from_blob(frequencies.data(), {static_cast<std::int64_t>(frequencies.size())},
                              at::kFloat));
  return {.cosine = at::cos(angles) * rope.attention_factor,
          .sine = at::sin(angles) * rope.attention_factor};
}

AttentionStep::AttentionStep(const Batch& batch, const AttentionSizes& sizes,
                             const RotaryTables& rotary, const at::TensorOptions& options,
                             Path path)
    : sizes_(sizes),
      rotary_(rotary),
      options_(options),
      has_kernels_(path == Path::kFastest && HasKernels(options)),
      paged_(sizes),
      gathered_(sizes, options) {
  for (const SequenceSlice& sequence : batch.sequences) {
    Check(sequence, rotary.cosine.size(0));
    for (std::int64_t i = sequence.context - sequence.length; i < sequence.context; ++i) {
      positions_.push_back(i);
      slots_.push_back(SlotOf(sequence, i));
    }
    const auto blocks = std::span(sequence.blocks).first((sequence.context - 1) / kKvBlock + 1);
    slots_needed_ =
        std::max(slots_needed_, (std::int64_t{*std::ranges::max_element(blocks)} + 1) * kKvBlock);
  }
  AddSequences(batch);
}

void AttentionStep::AddSequences(const Batch& batch) {
  // The kernels know no windows; whole contexts they do.
  const auto has_kernels = [this](const SequenceSlice& sequence) {
    return has_kernels_ && (sizes_.window == 0 || sequence.context <= sizes_.window);
  };
  const auto is_decode = [&](const SequenceSlice& sequence) {
    return sequence.length == 1 && !has_kernels(sequence);
  };
  const std::span<const SequenceSlice> sequences = batch.sequences;
  for (std::size_t i = 0; i < sequences.size();) {
    if (has_kernels(sequences[i])) {
      paged_.Add(sequences[i++]);
    } else if (is_decode(sequences[i])) {
      const auto rest = sequences.subspan(i);
      const auto end = std::ranges::find_if_not(rest, is_decode);
      const auto count = static_cast<std::size_t>(end - rest.begin());
      gathered_.AddDecodes(rest.first(count));
      i += count;
    } else {
      gathered_.AddPiece(sequences[i++]);
    }
  }
}

template <typename T>
void AttentionStep::RotateAndStore(const at::Tensor& qkv, const KvLayer& layer) const {
  const std::int64_t rotated = (sizes_.heads + sizes_.kv_heads) * sizes_.head_size;
  const std::int64_t stored = sizes_.kv_heads * sizes_.head_size;
  const std::int64_t half = sizes_.head_size / 2;
  auto* rows = static_cast<T*>(qkv.mutable_data_ptr());
  auto* keys = static_cast<T*>(layer.keys.mutable_data_ptr());
  auto* values = static_cast<T*>(layer.values.mutable_data_ptr());
  const float* cosine = rotary_.cosine.const_data_ptr<float>();
  const float* sine = rotary_.sine.const_data_ptr<float>();
  ParallelFor(qkv.size(0), qkv.size(1) / 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t position = positions_[static_cast<std::size_t>(row)];
      const std::int64_t slot = slots_[static_cast<std::size_t>(row)];
      T* query = rows + row * qkv.size(1);
      T* value = query + rotated;
      T* key = value - stored;
      RotateHeads(query, static_cast<std::size_t>(sizes_.heads + sizes_.kv_heads),
                  static_cast<std::size_t>(sizes_.head_size), cosine + position * half,
                  sine + position * half);
      const auto bytes = static_cast<std::size_t>(stored) * sizeof(T);
      std::memcpy(keys + slot * stored, key, bytes);
      std::memcpy(values + slot * stored, value, bytes);
    }
  });
}

// Returns queries, keys and values with the first two rotated: [rows, heads + 2 · kv_heads,
// head_size].
at::Tensor AttentionStep::RotateAndStoreByReference(const at::Tensor& qkv,
                                                    const KvLayer& layer) const {
  const at::Tensor heads = qkv.unflatten(1, {sizes_.heads + 2 * sizes_.kv_heads, sizes_.head_size});
  const at::Tensor positions = Positions();
  const at::Tensor slots = Slots();
  const std::int64_t rotated = sizes_.heads + sizes_.kv_heads;
  const at::Tensor value = heads.narrow(1, rotated, sizes_.kv_heads);
  const at::Tensor query_key =
      Rotate(heads.narrow(1, 0, rotated), at::index_select(rotary_.cosine, 0, positions),
             at::index_select(rotary_.sine, 0, positions));
  layer.keys.index_copy_(0, slots, query_key.narrow(1, sizes_.heads, sizes_.kv_heads));
  layer.values.index_copy_(0, slots, value);
  return at::cat({query_key, value}, 1);
}

at::Tensor AttentionStep::Positions() const { return Indices(positions_, options_.device()); }

at::Tensor AttentionStep::Slots() const { return Indices(slots_, options_.device()); }

void AttentionStep::CheckSlots(const KvLayer& layer) const {
  if (slots_needed_ <= layer.keys.size(0)) return;
  throw std::out_of_range(fmt::format("block {} of a cache of {} blocks",
                                      slots_needed_ / kKvBlock - 1, layer.keys.size(0) / kKvBlock));
}

at::Tensor AttentionStep::Attend(const at::Tensor& qkv, const KvLayer& layer) {
  CheckSlots(layer);
  at::Tensor heads = qkv.unflatten(1, {sizes_.heads + 2 * sizes_.kv_heads, sizes_.head_size});
  if (has_kernels_) {
    if (qkv.scalar_type() == at::kFloat) {
      RotateAndStore<float>(qkv, layer);
    } else {
      RotateAndStore<Bf16>(qkv, layer);
    }
  } else {
    heads = RotateAndStoreByReference(qkv, layer);
  }
  return Mix(heads.flatten(1), heads.narrow(1, sizes_.heads, sizes_.kv_heads),
             heads.narrow(1, sizes_.heads + sizes_.kv_heads, sizes_.kv_heads), layer);
}

at::Tensor AttentionStep::Mix(const at::Tensor& queries, const at::Tensor& keys,
                              const at::Tensor& values, const KvLayer& layer) {
  const std::int64_t size = sizes_.heads * sizes_.head_size;
  const at::Tensor result =
      at::empty({queries.size(0), sizes_.heads, sizes_.head_size}, queries.options());
  paged_.Attend(queries, layer, result);
  gathered_.Attend(queries.narrow(1, 0, size).unflatten(1, {sizes_.heads, sizes_.head_size}), keys,
                   values, layer, result);
  return result.flatten(1);
}

}  // namespace syncline::model
