// Attention by ATen's operations, on any device and type: keys and values of a sequence are
// gathered from the cache first. The reference, and the way for long pieces of prompts, where the
// products cost more than the gathering.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "model/batch.h"
#include "model/kv_layer.h"

namespace syncline::model {

class GatheredAttention {
 public:
  // `options`: type and device of queries, keys and values.
  GatheredAttention(const AttentionSizes& sizes, const at::TensorOptions& options)
      : sizes_(sizes), options_(options) {}

  // Consecutive sequences of one row each. They are padded to the longest context.
  void AddDecodes(std::span<const SequenceSlice> sequences);
  void AddPiece(const SequenceSlice& sequence);

  // query: [rows, heads, head_size]; key, value: [rows, kv_heads, head_size], as they are in
  // `layer` already. Writes the rows of what was added into `result`, of query's shape.
  void Attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const KvLayer& layer, const at::Tensor& result) const;

 private:
  struct Decodes {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t seen = 0;  // tokens, the most that any of the sequences sees
    at::Tensor slots;       // int64 [count · seen]
    at::Tensor mask;        // [count, 1, 1, seen]: 0, or -inf for padding
  };
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t length = 0;
    at::Tensor slots;  // int64 [tokens seen]; undefined where these are the piece itself
    at::Tensor mask;   // [length, tokens seen]; undefined where the plain causal mask does
  };

  // How many tokens at the end of a sequence any of its last `rows` tokens sees.
  std::int64_t Seen(const SequenceSlice& sequence, std::int64_t rows) const;
  at::Tensor Indices(std::vector<std::int64_t> values) const;
  at::Tensor Attend(const Decodes& decodes, const at::Tensor& query, const KvLayer& layer) const;
  at::Tensor Attend(const Piece& piece, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) const;

  AttentionSizes sizes_;
  at::TensorOptions options_;
  std::vector<Decodes> decodes_;
  std::vector<Piece> pieces_;
};

}  // namespace syncline::model
