#include "model/grouped_attention_block.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "model/attention.h"
#include "model/linear.h"

namespace syncline::model {
namespace {

struct Layer {
  at::Tensor qkv;
  at::Tensor qkv_bias;
};

class GroupedAttentionBlock : public AttentionBlock {
 public:
  GroupedAttentionBlock(const AttentionSizes& sizes, RotaryTables rotary, std::vector<Layer> layers)
      : sizes_(sizes), rotary_(std::move(rotary)), layers_(std::move(layers)) {}

  std::uint64_t CacheBytesPerToken() const override {
    return 2 * layers_[0].qkv.element_size() * layers_.size() *
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
    Pass(const GroupedAttentionBlock& block, const Batch& batch)
        : block_(block),
          step_(batch, block.sizes_, block.rotary_, block.layers_[0].qkv.options()) {}

    at::Tensor Attend(std::size_t layer, const at::Tensor& x) override {
      const Layer& own = block_.layers_[layer];
      return step_.Attend(Linear(x, own.qkv, own.qkv_bias), block_.cache_.at(layer));
    }

   private:
    const GroupedAttentionBlock& block_;
    AttentionStep step_;
  };

  AttentionSizes sizes_;
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
  for (const GroupedAttentionParameters& layer : layers) {
    tensors.push_back({.qkv = parameters[layer.qkv], .qkv_bias = parameters[layer.qkv_bias]});
  }
  return std::make_unique<GroupedAttentionBlock>(
      sizes, MakeRotaryTables(config.rope, config.head_size, config.max_positions),
      std::move(tensors));
}

}  // namespace syncline::model
