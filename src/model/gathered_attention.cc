#include "model/gathered_attention.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace syncline::model {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor GatheredAttention::Indices(std::vector<std::int64_t> values) const {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong)
      .to(options_.device(), at::kLong, /*non_blocking=*/false, /*copy=*/true);
}

std::int64_t GatheredAttention::Seen(const SequenceSlice& sequence, std::int64_t rows) const {
  const std::int64_t context = sequence.context;
  return sizes_.window > 0 ? std::min(context, sizes_.window + rows - 1) : context;
}

void GatheredAttention::AddDecodes(std::span<const SequenceSlice> sequences) {
  Decodes decodes{.begin = sequences.front().begin,
                  .count = static_cast<std::int64_t>(sequences.size())};
  for (const SequenceSlice& sequence : sequences) {
    decodes.seen = std::max(decodes.seen, Seen(sequence, 1));
  }
  std::vector<std::int64_t> slots;
  slots.reserve(static_cast<std::size_t>(decodes.count * decodes.seen));
  decodes.mask = at::zeros({decodes.count, 1, 1, decodes.seen}, options_);
  for (std::int64_t row = 0; row < decodes.count; ++row) {
    const SequenceSlice& sequence = sequences[static_cast<std::size_t>(row)];
    const std::int64_t context = sequence.context;
    const std::int64_t seen = Seen(sequence, 1);
    for (std::int64_t i = 0; i < decodes.seen; ++i) {
      slots.push_back(SlotOf(sequence, std::min(context - seen + i, context - 1)));
    }
    decodes.mask.select(0, row).narrow(-1, seen, decodes.seen - seen).fill_(kLowest);
  }
  decodes.slots = Indices(std::move(slots));
  decodes_.push_back(std::move(decodes));
}

void GatheredAttention::AddPiece(const SequenceSlice& sequence) {
  Piece piece{.begin = sequence.begin, .length = sequence.length};
  const std::int64_t seen = Seen(sequence, piece.length);
  if (piece.length != seen) {
    std::vector<std::int64_t> slots;
    slots.reserve(static_cast<std::size_t>(seen));
    for (std::int64_t i = sequence.context - seen; i < sequence.context; ++i) {
      slots.push_back(SlotOf(sequence, i));
    }
    piece.slots = Indices(std::move(slots));
  }
  const bool has_window = sizes_.window > 0 && sequence.context > sizes_.window;
  if (piece.slots.defined() || has_window) {
    // Row i is token seen - length + i.
    const at::Tensor all = at::full({piece.length, seen}, kLowest, options_);
    piece.mask = all.triu(seen - piece.length + 1);
    if (has_window) piece.mask += all.tril(seen - piece.length - sizes_.window);
  }
  pieces_.push_back(std::move(piece));
}

void GatheredAttention::Attend(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const KvLayer& layer,
                               const at::Tensor& result) const {
  for (const Decodes& decodes : decodes_) {
    result.narrow(0, decodes.begin, decodes.count)
        .copy_(Attend(decodes, query.narrow(0, decodes.begin, decodes.count), layer));
  }
  for (const Piece& piece : pieces_) {
    const auto pick = [&](const at::Tensor& step, const at::Tensor& cache) {
      return piece.slots.defined() ? at::index_select(cache, 0, piece.slots)
                                   : step.narrow(0, piece.begin, piece.length);
    };
    result.narrow(0, piece.begin, piece.length)
        .copy_(Attend(piece, query.narrow(0, piece.begin, piece.length), pick(key, layer.keys),
                      pick(value, layer.values)));
  }
}

// The query heads that share a key head stand where the query positions usually stand, so keys are
// not repeated.
at::Tensor GatheredAttention::Attend(const Decodes& decodes, const at::Tensor& query,
                                     const KvLayer& layer) const {
  const auto gather = [&](const at::Tensor& from) {
    return at::index_select(from, 0, decodes.slots)
        .view({decodes.count, decodes.seen, sizes_.kv_heads, sizes_.head_size})
        .transpose(1, 2);
  };
  const std::int64_t group = sizes_.heads / sizes_.kv_heads;
  const at::Tensor grouped =
      query.reshape({decodes.count, sizes_.kv_heads, group, sizes_.head_size});
  return at::scaled_dot_product_attention(grouped, gather(layer.keys), gather(layer.values),
                                          decodes.mask, 0.0, /*is_causal=*/false, sizes_.Scale())
      .reshape({decodes.count, sizes_.heads, sizes_.head_size});
}

// Key heads stand where the batch usually stands, and the queries that share one see the same
// memory.
at::Tensor GatheredAttention::Attend(const Piece& piece, const at::Tensor& query,
                                     const at::Tensor& key, const at::Tensor& value) const {
  const std::int64_t group = sizes_.heads / sizes_.kv_heads;
  const auto share = [&](const at::Tensor& of_heads) {
    return of_heads.transpose(0, 1).unsqueeze(1).expand({-1, group, -1, -1});
  };
  const at::Tensor grouped = query.unflatten(1, {sizes_.kv_heads, group}).permute({1, 2, 0, 3});
  const at::Tensor mixed =
      piece.mask.defined()
          ? at::scaled_dot_product_attention(grouped, share(key), share(value), piece.mask, 0.0,
                                             /*is_causal=*/false, sizes_.Scale())
          : at::scaled_dot_product_attention(grouped, share(key), share(value), {}, 0.0,
                                             /*is_causal=*/true, sizes_.Scale());
  return mixed.permute({2, 0, 1, 3}).reshape({piece.length, sizes_.heads, sizes_.head_size});
}

}  // namespace syncline::model
