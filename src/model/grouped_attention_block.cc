#include "model/grouped_attention_block.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "model/attention.h"
#include "model/linear.h"
#include "model/ops.h"

namespace syncline::model {
namespace {

struct Layer {
  WeightMatrix qkv;
  at::Tensor qkv_bias;
  at::Tensor q_norm;  // undefined: queries and keys are not normed
  at::Tensor k_norm;
  bool has_window = false;
};

class GroupedAttentionBlock : public AttentionBlock {
 public:
  // `window`: of the layers that have one.
  GroupedAttentionBlock(const AttentionSizes& sizes, std::int64_t window, double epsilon,
                        RotaryTables rotary, std::vector<Layer> layers)
      : sizes_(sizes),
        window_(window),
        epsilon_(epsilon),
        rotary_(std::move(rotary)),
        layers_(std::move(layers)) {}

  std::uint64_t CacheBytesPerToken() const override {
    return 2 * layers_[0].qkv.options().dtype().itemsize() * layers_.size() *
           static_cast<std::uint64_t>(sizes_.kv_heads * sizes_.head_size);
  }

  void Reserve(std::uint32_t blocks) override {
    cache_.clear();
    std::vector<KvLayer> cache;
    for (const Layer& layer : layers_) {
      const auto make = [&] {
        return at::empty({std::int64_t{blocks} * kKvBlock, sizes_.kv_heads, sizes_.head_size},
                         layer.qkv.options());
      };
      cache.push_back({.keys = make(), .values = make()});
    }
    cache_ = std::move(cache);
  }

  std::unique_ptr<AttentionPass> Begin(const Batch& batch) override {
    return std::make_unique<Pass>(*this, batch);
  }

 private:
  class Pass : public AttentionPass {
   public:
    Pass(const GroupedAttentionBlock& block, const Batch& batch) : block_(block), batch_(batch) {}

    at::Tensor Attend(std::size_t layer, const at::Tensor& x) override {
      const Layer& own = block_.layers_[layer];
      const at::Tensor qkv = Linear(x, own.qkv, own.qkv_bias);
      if (own.q_norm.defined()) Norm(own, qkv);
      return StepOf(own).Attend(qkv, block_.cache_.at(layer));
    }

   private:
    void Norm(const Layer& layer, const at::Tensor& qkv) const {
      const AttentionSizes& sizes = block_.sizes_;
      const at::Tensor heads =
          qkv.view({qkv.size(0), sizes.heads + 2 * sizes.kv_heads, sizes.head_size});
      NormHeads(heads.narrow(1, 0, sizes.heads), layer.q_norm, block_.epsilon_);
      NormHeads(heads.narrow(1, sizes.heads, sizes.kv_heads), layer.k_norm, block_.epsilon_);
    }

    AttentionStep& StepOf(const Layer& layer) {
      std::optional<AttentionStep>& step = layer.has_window ? windowed_ : full_;
      if (!step) {
        AttentionSizes sizes = block_.sizes_;
        if (layer.has_window) sizes.window = block_.window_;
        step.emplace(batch_, sizes, block_.rotary_, block_.layers_[0].qkv.options());
      }
      return *step;
    }

    const GroupedAttentionBlock& block_;
    const Batch& batch_;
    std::optional<AttentionStep> full_;
    std::optional<AttentionStep> windowed_;
  };

  AttentionSizes sizes_;
  std::int64_t window_;
  double epsilon_;
  RotaryTables rotary_;
  std::vector<Layer> layers_;
  std::vector<KvLayer> cache_;
};

}  // namespace

std::unique_ptr<AttentionBlock> MakeGroupedAttention(
    const ModelConfig& config, const layout::Shard& shard,
    const std::vector<GroupedAttentionParameters>& layers, const ParameterTensors& parameters) {
  const AttentionSizes sizes = {.heads = config.heads / shard.size,
                                .kv_heads = std::max(1U, config.kv_heads / shard.size),
                                .head_size = config.head_size};
  std::vector<Layer> tensors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool windowed = config.windowed_layers.empty() || config.windowed_layers[i];
    tensors.push_back({.qkv = parameters.Matrix(layers[i].qkv),
                       .qkv_bias = parameters[layers[i].qkv.bias],
                       .q_norm = parameters[layers[i].q_norm],
                       .k_norm = parameters[layers[i].k_norm],
                       .has_window = config.window > 0 && windowed});
  }
  return std::make_unique<GroupedAttentionBlock>(
      sizes, config.window, config.rms_norm_epsilon,
      MakeRotaryTables(config.rope, config.head_size, config.max_positions), std::move(tensors));
}

}  // namespace syncline::model
