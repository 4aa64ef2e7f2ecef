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

LatentAttentionParameters PlanLatentAttention(ShardPlanner& planner, const std::string& prefix,
                                              const ModelConfig& config) {
  const LatentConfig& latent = *config.latent;
  const std::uint64_t rope = latent.rope_size;
  const auto heads = [&](const std::string& name, std::uint64_t unit_rows, std::uint64_t columns) {
    const std::string tensor = prefix + name + ".weight";
    return planner.Columns(tensor,
                           {{.tensor = tensor,
                             .units = config.heads,
                             .unit_rows = unit_rows,
                             .what = "num_attention_heads"}},
                           {columns});
  };
  const auto bias = [&](const std::string& name, std::uint64_t rows) {
    return config.qkv_bias ? planner.Replicated(prefix + name + ".bias", {rows}) : kNone;
  };
  LatentAttentionParameters parameters;
  if (latent.q_rank == 0) {
    parameters.q = heads("q_proj", latent.nope_size + rope, config.hidden);
  } else {
    parameters.q_a = planner.Replicated(prefix + "q_a_proj.weight", {latent.q_rank, config.hidden});
    parameters.q_a_bias = bias("q_a_proj", latent.q_rank);
    parameters.q_a_norm = planner.Replicated(prefix + "q_a_layernorm.weight", {latent.q_rank});
    parameters.q_b = heads("q_b_proj", latent.nope_size + rope, latent.q_rank);
  }
  parameters.kv_a = planner.Replicated(prefix + "kv_a_proj_with_mqa.weight",
                                       {latent.kv_rank + rope, config.hidden});
  parameters.kv_a_bias = bias("kv_a_proj_with_mqa", latent.kv_rank + rope);
  parameters.kv_a_norm = planner.Replicated(prefix + "kv_a_layernorm.weight", {latent.kv_rank});
  parameters.kv_b =
      heads("kv_b_proj", std::uint64_t{latent.nope_size} + latent.value_size, latent.kv_rank);
  const std::uint64_t local = config.heads / planner.shard().size;
  const tensor::Dtype dtype = planner.DtypeOfTensor(prefix + "kv_b_proj.weight");
  parameters.absorbed_k = planner.Derived(prefix + "kv_b_proj.absorbed_k", dtype,
                                          {local, latent.kv_rank, latent.nope_size});
  parameters.absorbed_v = planner.Derived(prefix + "kv_b_proj.absorbed_v", dtype,
                                          {local, latent.value_size, latent.kv_rank});
  return parameters;
}

ExpertsParameters PlanExperts(ShardPlanner& planner, const std::string& prefix,
                              const ModelConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  ExpertsParameters parameters;
  parameters.router = planner.Replicated(prefix + "gate.weight", {experts.experts, config.hidden});
  if (experts.correction_bias) {
    parameters.correction_bias =
        planner.Replicated(prefix + "gate.e_score_correction_bias", {experts.experts});
  }
  const ShardPlanner::ExpertParameters routed =
      planner.Experts(prefix + "experts.", experts.experts, experts.width, config.hidden);
  parameters.gate_up = routed.gate_up;
  parameters.down = routed.down;
  if (experts.shared > 0) {
    parameters.shared = PlanGatedMlp(planner, prefix + "shared_experts.",
                                     std::uint64_t{experts.shared} * experts.width, config);
  }
  return parameters;
}

namespace {

// What follows the attention itself in every layer. `values`: elements of a head of values.
void PlanRest(ShardPlanner& planner, const std::string& prefix, std::uint32_t layer,
              const ModelConfig& config, std::uint64_t values, LayerParameters& parameters) {
  const std::string o_proj = prefix + "self_attn.o_proj.";
  parameters.o = planner.Rows(o_proj + "weight", config.hidden, config.heads * values, values);
  if (config.o_bias) parameters.o_bias = planner.Replicated(o_proj + "bias", {config.hidden});
  if (config.experts && config.experts->Has(layer)) {
    parameters.mlp = PlanExperts(planner, prefix + "mlp.", config);
  } else {
    parameters.mlp = PlanGatedMlp(planner, prefix + "mlp.", config.intermediate, config);
  }
}

}  // namespace

void PlanGroupedLayer(ShardPlanner& planner, const std::string& prefix, std::uint32_t layer,
                      const ModelConfig& config, LayerParameters& parameters) {
  parameters.attention = PlanGroupedAttention(planner, prefix + "self_attn.", config);
  PlanRest(planner, prefix, layer, config, config.head_size, parameters);
}

void PlanLatentLayer(ShardPlanner& planner, const std::string& prefix, std::uint32_t layer,
                     const ModelConfig& config, LayerParameters& parameters) {
  parameters.attention = PlanLatentAttention(planner, prefix + "self_attn.", config);
  PlanRest(planner, prefix, layer, config, config.latent->value_size, parameters);
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
  for (std::uint32_t i = 0; i < config.draft_layers; ++i) {
    planner.Skip(fmt::format("model.layers.{}.*", config.layers + i));
  }
  SYNCLINE_ASSIGN(decoder.plan, std::move(planner).Build());
  return decoder;
}

}  // namespace syncline::model
