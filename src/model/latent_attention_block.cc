// One layer of one step:
//   1. queries of the local heads; the part without position goes through absorbed_k, the other is
//      rotated: [rows, heads, latent + rope];
//   2. the normed latent vector and the rotated key part of each row go into the cache;
//   3. attention over the cache, all heads sharing its keys, which are also the values;
//   4. the latent part of the mix goes through absorbed_v: [rows, heads · value].
#include "model/latent_attention_block.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>

#include <cmath>

#include "model/attention.h"
#include "model/linear.h"
#include "model/ops.h"

namespace syncline::model {
namespace {

// Of the norms of latent vectors: not the one of the layers' norms.
constexpr double kEpsilon = 1e-6;

struct Layer {
  WeightMatrix q;  // or, with a latent vector of queries, the next four
  WeightMatrix q_a;
  at::Tensor q_a_bias;
  at::Tensor q_a_norm;
  WeightMatrix q_b;
  WeightMatrix kv_a;
  at::Tensor kv_a_bias;
  at::Tensor kv_a_norm;
  at::Tensor absorbed_k;
  at::Tensor absorbed_v;
};

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) {
  return AddAndNorm(x.to(at::kFloat).contiguous(), {}, weight, kEpsilon);
}

// [rows, heads, n] · [heads, m, n] → [rows, heads, m]
at::Tensor MultiplyHeads(const at::Tensor& x, const at::Tensor& weight) {
  return BatchedLinear(x.transpose(0, 1).contiguous(), weight).transpose(0, 1);
}

class LatentAttentionBlock : public AttentionBlock {
 public:
  LatentAttentionBlock(const LatentConfig& config, const AttentionSizes& sizes, RotaryTables rotary,
                       std::vector<LatentAttentionParameters> parameters, std::vector<Layer> layers)
      : config_(config),
        sizes_(sizes),
        rotary_(std::move(rotary)),
        parameters_(std::move(parameters)),
        layers_(std::move(layers)) {}

  std::uint64_t CacheBytesPerToken() const override {
    return layers_[0].kv_a.options().dtype().itemsize() * layers_.size() *
           static_cast<std::uint64_t>(sizes_.head_size);
  }

  void Reserve(std::uint32_t blocks) override {
    cache_.clear();
    std::vector<KvLayer> cache;
    for (const Layer& layer : layers_) {
      const at::Tensor shared =
          at::empty({std::int64_t{blocks} * kKvBlock, 1, sizes_.head_size}, layer.kv_a.options());
      cache.push_back({.keys = shared, .values = shared});
    }
    cache_ = std::move(cache);
  }

  std::unique_ptr<AttentionPass> Begin(const Batch& batch) override;

  void Derive(const ParameterTensors& memory) const override;

 private:
  class Pass;

  at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) const {
    return config_.interleaved ? RotateNeighbours(x, cosine, sine) : model::Rotate(x, cosine, sine);
  }

  LatentConfig config_;
  AttentionSizes sizes_;  // of the absorbed form
  RotaryTables rotary_;
  std::vector<LatentAttentionParameters> parameters_;
  std::vector<Layer> layers_;
  std::vector<KvLayer> cache_;
};

class LatentAttentionBlock::Pass : public AttentionPass {
 public:
  Pass(const LatentAttentionBlock& block, const Batch& batch)
      : block_(block),
        step_(batch, block.sizes_, block.rotary_, block.layers_[0].kv_a.options()),
        slots_(step_.Slots()) {
    const at::Tensor positions = step_.Positions();
    cosine_ = at::index_select(block.rotary_.cosine, 0, positions);
    sine_ = at::index_select(block.rotary_.sine, 0, positions);
  }

  at::Tensor Attend(std::size_t layer, const at::Tensor& x) override {
    const Layer& own = block_.layers_[layer];
    const KvLayer& cache = block_.cache_.at(layer);
    step_.CheckSlots(cache);
    const at::Tensor queries = Queries(own, x);
    const at::Tensor keys = Keys(own, x);
    cache.keys.index_copy_(0, slots_, keys);
    const at::Tensor mixed = step_.Mix(queries, keys, keys, cache)
                                 .unflatten(1, {block_.sizes_.heads, block_.sizes_.head_size})
                                 .narrow(2, 0, block_.config_.kv_rank);
    return MultiplyHeads(mixed, own.absorbed_v).flatten(1).contiguous();
  }

 private:
  // [rows, heads · (latent + rope)]
  at::Tensor Queries(const Layer& layer, const at::Tensor& x) const {
    const std::int64_t nope = block_.config_.nope_size;
    const std::int64_t rope = block_.config_.rope_size;
    const at::Tensor q =
        (layer.q.defined()
             ? Linear(x, layer.q, {})
             : Linear(Norm(Linear(x, layer.q_a, layer.q_a_bias), layer.q_a_norm), layer.q_b, {}))
            .unflatten(1, {block_.sizes_.heads, nope + rope});
    return at::cat({MultiplyHeads(q.narrow(2, 0, nope), layer.absorbed_k),
                    block_.Rotate(q.narrow(2, nope, rope), cosine_, sine_)},
                   2)
        .flatten(1)
        .contiguous();
  }

  // [rows, 1, latent + rope]
  at::Tensor Keys(const Layer& layer, const at::Tensor& x) const {
    const std::int64_t latent = block_.config_.kv_rank;
    const std::int64_t rope = block_.config_.rope_size;
    const at::Tensor kv = Linear(x, layer.kv_a, layer.kv_a_bias);
    return at::cat({Norm(kv.narrow(1, 0, latent), layer.kv_a_norm).unsqueeze(1),
                    block_.Rotate(kv.narrow(1, latent, rope).unsqueeze(1), cosine_, sine_)},
                   2);
  }

  const LatentAttentionBlock& block_;
  AttentionStep step_;
  at::Tensor slots_;
  at::Tensor cosine_;
  at::Tensor sine_;
};

std::unique_ptr<AttentionPass> LatentAttentionBlock::Begin(const Batch& batch) {
  return std::make_unique<Pass>(*this, batch);
}

void LatentAttentionBlock::Derive(const ParameterTensors& memory) const {
  const std::int64_t nope = config_.nope_size;
  const std::int64_t value = config_.value_size;
  for (const LatentAttentionParameters& layer : parameters_) {
    const at::Tensor heads =
        memory.Matrix(layer.kv_b).Values().unflatten(0, {sizes_.heads, nope + value});
    memory[layer.absorbed_k].copy_(heads.narrow(1, 0, nope).transpose(1, 2));
    memory[layer.absorbed_v].copy_(heads.narrow(1, nope, value));
  }
}

}  // namespace

std::unique_ptr<AttentionBlock> MakeLatentAttention(
    const ModelConfig& config, const layout::Shard& shard,
    const std::vector<LatentAttentionParameters>& layers, const ParameterTensors& parameters) {
  const LatentConfig& latent = *config.latent;
  const double scale = config.rope.score_factor /
                       std::sqrt(static_cast<double>(latent.nope_size + latent.rope_size));
  const AttentionSizes sizes = {.heads = config.heads / shard.size,
                                .kv_heads = 1,
                                .head_size = latent.kv_rank + latent.rope_size,
                                .scale = scale};
  std::vector<Layer> tensors;
  tensors.reserve(layers.size());
  for (const LatentAttentionParameters& layer : layers) {
    tensors.push_back({.q = parameters.Matrix(layer.q),
                       .q_a = parameters.Matrix(layer.q_a),
                       .q_a_bias = parameters[layer.q_a.bias],
                       .q_a_norm = parameters[layer.q_a_norm],
                       .q_b = parameters.Matrix(layer.q_b),
                       .kv_a = parameters.Matrix(layer.kv_a),
                       .kv_a_bias = parameters[layer.kv_a.bias],
                       .kv_a_norm = parameters[layer.kv_a_norm],
                       .absorbed_k = parameters[layer.absorbed_k],
                       .absorbed_v = parameters[layer.absorbed_v]});
  }
  return std::make_unique<LatentAttentionBlock>(
      latent, sizes, MakeRotaryTables(config.rope, latent.rope_size, config.max_positions), layers,
      std::move(tensors));
}

}  // namespace syncline::model
