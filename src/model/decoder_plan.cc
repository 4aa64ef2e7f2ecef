#include "model/decoder_plan.h"

#include <fmt/core.h>

namespace syncline::model {

using Part = LinearPlanner::Part;

GroupedAttentionParameters PlanGroupedAttention(LinearPlanner& planner, const std::string& prefix,
                                                const ModelConfig& config) {
  const auto part = [&](const char* name, std::uint32_t heads, bool repeat) {
    return Part{.tensor = prefix + name,
                .units = heads,
                .unit_rows = config.head_size,
                .repeat = repeat,
                .what = repeat ? "num_key_value_heads" : "num_attention_heads"};
  };
  GroupedAttentionParameters parameters;
  parameters.qkv =
      planner.Columns(prefix + "qkv_proj",
                      {part("q_proj", config.heads, false), part("k_proj", config.kv_heads, true),
                       part("v_proj", config.kv_heads, true)},
                      config.hidden, config.qkv_bias);
  if (config.qk_norm) {
    parameters.q_norm = planner.shards().Replicated(prefix + "q_norm.weight", {config.head_size});
    parameters.k_norm = planner.shards().Replicated(prefix + "k_norm.weight", {config.head_size});
  }
  return parameters;
}

GatedMlpParameters PlanGatedMlp(LinearPlanner& planner, const std::string& prefix,
                                std::uint64_t width, const ModelConfig& config) {
  return {.gate_up = planner.Columns(prefix + "gate_up_proj",
                                     {{.tensor = prefix + "gate_proj", .units = width},
                                      {.tensor = prefix + "up_proj", .units = width}},
                                     config.hidden, config.mlp_bias),
          .down = planner.Rows(prefix + "down_proj", config.hidden, width, /*unit_columns=*/1,
                               config.mlp_bias)};
}

LatentAttentionParameters PlanLatentAttention(LinearPlanner& planner, const std::string& prefix,
                                              const ModelConfig& config) {
  const LatentConfig& latent = *config.latent;
  const std::uint64_t rope = latent.rope_size;
  layout::ShardPlanner& shards = planner.shards();
  const auto heads = [&](const std::string& name, std::uint64_t unit_rows, std::uint64_t columns) {
    const std::string module = prefix + name;
    return planner.Columns(module,
                           {{.tensor = module,
                             .units = config.heads,
                             .unit_rows = unit_rows,
                             .what = "num_attention_heads"}},
                           columns, /*bias=*/false);
  };
  LatentAttentionParameters parameters;
  if (latent.q_rank == 0) {
    parameters.q = heads("q_proj", latent.nope_size + rope, config.hidden);
  } else {
    parameters.q_a =
        planner.Replicated(prefix + "q_a_proj", latent.q_rank, config.hidden, config.qkv_bias);
    parameters.q_a_norm = shards.Replicated(prefix + "q_a_layernorm.weight", {latent.q_rank});
    parameters.q_b = heads("q_b_proj", latent.nope_size + rope, latent.q_rank);
  }
  parameters.kv_a = planner.Replicated(prefix + "kv_a_proj_with_mqa", latent.kv_rank + rope,
                                       config.hidden, config.qkv_bias);
  parameters.kv_a_norm = shards.Replicated(prefix + "kv_a_layernorm.weight", {latent.kv_rank});
  parameters.kv_b =
      heads("kv_b_proj", std::uint64_t{latent.nope_size} + latent.value_size, latent.kv_rank);
  const std::uint64_t local = config.heads / shards.shard().size;
  const tensor::Dtype dtype = parameters.kv_b.unit != kNone
                                  ? planner.activation()
                                  : shards.DtypeOfTensor(prefix + "kv_b_proj.weight");
  parameters.absorbed_k = shards.Derived(prefix + "kv_b_proj.absorbed_k", dtype,
                                         {local, latent.kv_rank, latent.nope_size});
  parameters.absorbed_v = shards.Derived(prefix + "kv_b_proj.absorbed_v", dtype,
                                         {local, latent.value_size, latent.kv_rank});
  return parameters;
}

ExpertsParameters PlanExperts(LinearPlanner& planner, const std::string& prefix,
                              const ModelConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  ExpertsParameters parameters;
  layout::ShardPlanner& shards = planner.shards();
  parameters.router = shards.Replicated(prefix + "gate.weight", {experts.experts, config.hidden});
  if (experts.correction_bias) {
    parameters.correction_bias =
        shards.Replicated(prefix + "gate.e_score_correction_bias", {experts.experts});
  }
  const LinearPlanner::Experts routed =
      planner.RoutedExperts(prefix + "experts.", experts.experts, experts.width, config.hidden);
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
void PlanRest(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
              const ModelConfig& config, std::uint64_t values, LayerParameters& parameters) {
  parameters.o = planner.Rows(prefix + "self_attn.o_proj", config.hidden, config.heads * values,
                              values, config.o_bias);
  if (config.experts && config.experts->Has(layer)) {
    parameters.mlp = PlanExperts(planner, prefix + "mlp.", config);
  } else {
    parameters.mlp = PlanGatedMlp(planner, prefix + "mlp.", config.intermediate, config);
  }
}

}  // namespace

void PlanGroupedLayer(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
                      const ModelConfig& config, LayerParameters& parameters) {
  parameters.attention = PlanGroupedAttention(planner, prefix + "self_attn.", config);
  PlanRest(planner, prefix, layer, config, config.head_size, parameters);
}

void PlanLatentLayer(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
                     const ModelConfig& config, LayerParameters& parameters) {
  parameters.attention = PlanLatentAttention(planner, prefix + "self_attn.", config);
  PlanRest(planner, prefix, layer, config, config.latent->value_size, parameters);
}

base::Result<DecoderPlan> PlanDecoder(const ModelConfig& config, const layout::Shard& shard,
                                      layout::ShardPlanner::DtypeOf dtype_of, PlanLayer layer) {
  DecoderPlan decoder;
  decoder.shard = shard;
  layout::ShardPlanner shards(shard, std::move(dtype_of));
  LinearPlanner planner(shards, config.quantisation);
  decoder.activation = planner.activation();
  decoder.embedding =
      shards.Vocabulary("model.embed_tokens.weight", config.vocabulary, config.hidden);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    LayerParameters& parameters = decoder.layers.emplace_back();
    parameters.input_norm = shards.Replicated(prefix + "input_layernorm.weight", {config.hidden});
    layer(planner, prefix, i, config, parameters);
    parameters.post_norm =
        shards.Replicated(prefix + "post_attention_layernorm.weight", {config.hidden});
  }
  decoder.final_norm = shards.Replicated("model.norm.weight", {config.hidden});
  if (config.tied_embeddings) {
    decoder.head = decoder.embedding;
    shards.Alias("lm_head.weight", "model.embed_tokens.weight");
  } else {
    decoder.head = shards.Vocabulary("lm_head.weight", config.vocabulary, config.hidden);
  }
  shards.Skip("*.rotary_emb.inv_freq");
  for (std::string& name : quant::SkippedTensors(config.quantisation)) {
    shards.Skip(std::move(name));
  }
  for (std::uint32_t i = 0; i < config.draft_layers; ++i) {
    shards.Skip(fmt::format("model.layers.{}.*", config.layers + i));
  }
  SYNCLINE_ASSIGN(decoder.plan, std::move(shards).Build());
  SYNCLINE_ASSIGN(decoder.units, std::move(planner).Units(decoder.plan));
  return decoder;
}

}  // namespace syncline::model
