#include "model/llama_plan.h"

#include <fmt/core.h>

namespace syncline::model {
namespace {

using Shape = std::vector<std::uint64_t>;

// Adds the parameters of one layer, in the order of LlamaLayerParameters.
class LayerPlanner {
 public:
  LayerPlanner(layout::PlanBuilder& builder, std::size_t& count, const std::string& prefix,
               tensor::Dtype dtype)
      : builder_(builder), count_(count), prefix_(prefix), dtype_(dtype) {}

  std::size_t Whole(const std::string& name, const Shape& shape) {
    builder_.AddWhole(prefix_ + name, prefix_ + name, dtype_, shape);
    return count_++;
  }

  std::size_t Stacked(const std::string& folder, const std::vector<std::string>& names,
                      const std::vector<std::uint64_t>& rows, const std::string& fused,
                      const std::string& kind, std::uint64_t columns) {
    std::vector<layout::TensorSpec> tensors;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const Shape shape = kind == ".bias" ? Shape{rows[i]} : Shape{rows[i], columns};
      tensors.push_back({fmt::format("{}{}{}{}", prefix_, folder, names[i], kind), dtype_, shape});
    }
    builder_.AddStacked(tensors, fmt::format("{}{}{}{}", prefix_, folder, fused, kind));
    return count_++;
  }

 private:
  layout::PlanBuilder& builder_;
  std::size_t& count_;  // parameters so far
  std::string prefix_;
  tensor::Dtype dtype_;
};

LlamaLayerParameters AddLayer(LayerPlanner planner, const ModelConfig& config) {
  constexpr std::size_t kNone = layout::Plan::npos;
  const std::uint64_t hidden = config.hidden;
  const std::uint64_t query = std::uint64_t{config.heads} * config.head_size;
  const std::uint64_t key = std::uint64_t{config.kv_heads} * config.head_size;
  const std::uint64_t wide = config.intermediate;
  const std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"};
  const std::vector<std::string> gate_up = {"gate_proj", "up_proj"};

  LlamaLayerParameters layer{};
  layer.input_norm = planner.Whole("input_layernorm.weight", {hidden});
  layer.qkv = planner.Stacked("self_attn.", qkv, {query, key, key}, "qkv_proj", ".weight", hidden);
  layer.o = planner.Whole("self_attn.o_proj.weight", {hidden, query});
  layer.post_norm = planner.Whole("post_attention_layernorm.weight", {hidden});
  layer.gate_up = planner.Stacked("mlp.", gate_up, {wide, wide}, "gate_up_proj", ".weight", hidden);
  layer.down = planner.Whole("mlp.down_proj.weight", {hidden, wide});
  layer.qkv_bias = layer.o_bias = layer.gate_up_bias = layer.down_bias = kNone;
  if (config.attention_bias) {
    layer.qkv_bias = planner.Stacked("self_attn.", qkv, {query, key, key}, "qkv_proj", ".bias", 0);
    layer.o_bias = planner.Whole("self_attn.o_proj.bias", {hidden});
  }
  if (config.mlp_bias) {
    layer.gate_up_bias = planner.Stacked("mlp.", gate_up, {wide, wide}, "gate_up_proj", ".bias", 0);
    layer.down_bias = planner.Whole("mlp.down_proj.bias", {hidden});
  }
  return layer;
}

}  // namespace

base::Result<LlamaPlan> PlanLlama(const ModelConfig& config, tensor::Dtype dtype) {
  LlamaPlan llama;
  layout::PlanBuilder builder;
  std::size_t count = 0;
  LayerPlanner top(builder, count, "", dtype);
  const Shape embedding = {config.vocabulary, config.hidden};
  llama.embedding = top.Whole("model.embed_tokens.weight", embedding);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    llama.layers.push_back(AddLayer(LayerPlanner(builder, count, prefix, dtype), config));
  }
  llama.final_norm = top.Whole("model.norm.weight", {config.hidden});
  if (config.tied_embeddings) {
    llama.head = llama.embedding;
    builder.Alias("lm_head.weight", "model.embed_tokens.weight");
  } else {
    llama.head = top.Whole("lm_head.weight", embedding);
  }
  builder.Skip("*.rotary_emb.inv_freq");
  SYNCLINE_ASSIGN(llama.plan, std::move(builder).Build());
  return llama;
}

}  // namespace syncline::model
