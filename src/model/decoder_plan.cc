#include "model/decoder_plan.h"

#include <fmt/core.h>

namespace syncline::model {

using layout::ShardPlanner;

GroupedAttentionParameters PlanGroupedAttention(ShardPlanner& planner, const std::string& prefix,
                                                const ModelConfig& config) {
  const auto parts = [&](const char* kind) {
    const auto part = [&](const char* name, std::uint32_t heads, bool repeat) {
      return ShardPlanner::Part{.tensor = fmt::format("{}{}_proj.{}", prefix, name, kind),
                                .units = heads,
                                .unit_rows = config.head_size,
                                .repeat = repeat,
                                .what = repeat ? "num_key_value_heads" : "num_attention_heads"};
    };
    return std::vector<ShardPlanner::Part>{part("q", config.heads, false),
                                           part("k", config.kv_heads, true),
                                           part("v", config.kv_heads, true)};
  };
  GroupedAttentionParameters parameters;
  parameters.qkv = planner.Columns(prefix + "qkv_proj.weight", parts("weight"), {config.hidden});
  if (config.qkv_bias) {
    parameters.qkv_bias = planner.Columns(prefix + "qkv_proj.bias", parts("bias"), {});
  }
  if (config.qk_norm) {
    parameters.q_norm = planner.Replicated(prefix + "q_norm.weight", {config.head_size});
    parameters.k_norm = planner.Replicated(prefix + "k_norm.weight", {config.head_size});
  }
  return parameters;
}

GatedMlpParameters PlanGatedMlp(ShardPlanner& planner, const std::string& prefix,
                                std::uint64_t width, const ModelConfig& config) {
  const auto parts = [&](const char* kind) {
    return std::vector<ShardPlanner::Part>{
        {.tensor = fmt::format("{}gate_proj.{}", prefix, kind), .units = width},
        {.tensor = fmt::format("{}up_proj.{}", prefix, kind), .units = width}};
  };
  GatedMlpParameters parameters;
  parameters.gate_up =
      planner.Columns(prefix + "gate_up_proj.weight", parts("weight"), {config.hidden});
  parameters.down = planner.Rows(prefix + "down_proj.weight", config.hidden, width);
  if (config.mlp_bias) {
    parameters.gate_up_bias = planner.Columns(prefix + "gate_up_proj.bias", parts("bias"), {});
    parameters.down_bias = planner.Replicated(prefix + "down_proj.bias", {config.hidden});
  }
  return parameters;
}

void PlanDenseLayer(ShardPlanner& planner, const std::string& prefix, std::uint32_t /*layer*/,
                    const ModelConfig& config, LayerParameters& parameters) {
  const std::string attention = prefix + "self_attn.";
  parameters.attention = PlanGroupedAttention(planner, attention, config);
  parameters.o = planner.Rows(attention + "o_proj.weight", config.hidden,
                              std::uint64_t{config.heads} * config.head_size, config.head_size);
  if (config.o_bias) {
    parameters.o_bias = planner.Replicated(attention + "o_proj.bias", {config.hidden});
  }
  parameters.mlp = PlanGatedMlp(planner, prefix + "mlp.", config.intermediate, config);
}

base::Result<DecoderPlan> PlanDecoder(const ModelConfig& config, const layout::Shard& shard,
                                      ShardPlanner::DtypeOf dtype_of, PlanLayer layer) {
  DecoderPlan decoder;
  decoder.shard = shard;
  ShardPlanner planner(shard, std::move(dtype_of));
  decoder.embedding =
      planner.Vocabulary("model.embed_tokens.weight", config.vocabulary, config.hidden);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    LayerParameters& parameters = decoder.layers.emplace_back();
    parameters.input_norm = planner.Replicated(prefix + "input_layernorm.weight", {config.hidden});
    layer(planner, prefix, i, config, parameters);
    parameters.post_norm =
        planner.Replicated(prefix + "post_attention_layernorm.weight", {config.hidden});
  }
  decoder.final_norm = planner.Replicated("model.norm.weight", {config.hidden});
  if (config.tied_embeddings) {
    decoder.head = decoder.embedding;
    planner.Alias("lm_head.weight", "model.embed_tokens.weight");
  } else {
    decoder.head = planner.Vocabulary("lm_head.weight", config.vocabulary, config.hidden);
  }
  planner.Skip("*.rotary_emb.inv_freq");
  SYNCLINE_ASSIGN(decoder.plan, std::move(planner).Build());
  return decoder;
}

}  // namespace syncline::model
