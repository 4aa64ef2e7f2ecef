// DeepSeek-V2 and V3, and models of the same make (Kimi-K2): multi-head latent attention, and a
// mixture of experts with a shared one.
#include <fmt/core.h>

#include <initializer_list>

#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

using base::Code;
using base::Json;

// Reads a text that must be one of those that are served.
base::Status ReadChoice(const Json& json, std::string_view name,
                        std::initializer_list<std::string_view> served, std::string& value) {
  SYNCLINE_TRY(ReadField(json, name, value));
  std::string list;
  for (const std::string_view choice : served) {
    if (value == choice) return {};
    list += fmt::format("{}{}", list.empty() ? "" : " and ", choice);
  }
  return base::Fail(Code::kIncompatible,
                    fmt::format("{}: served is {}, found {}", name, list, value.substr(0, 80)));
}

base::Status ReadLatent(const Json& json, ModelConfig& config) {
  LatentConfig latent{
      .q_rank = 1536, .kv_rank = 512, .nope_size = 128, .rope_size = 64, .value_size = 128};
  const Json* q_rank = json.Find("q_lora_rank");
  if (q_rank != nullptr && q_rank->is_null()) latent.q_rank = 0;
  SYNCLINE_TRY(ReadField(json, "q_lora_rank", latent.q_rank));
  SYNCLINE_TRY(ReadField(json, "kv_lora_rank", latent.kv_rank));
  SYNCLINE_TRY(ReadField(json, "qk_nope_head_dim", latent.nope_size));
  SYNCLINE_TRY(ReadField(json, "qk_rope_head_dim", latent.rope_size));
  SYNCLINE_TRY(ReadField(json, "v_head_dim", latent.value_size));
  config.latent = latent;
  // There is one key for all heads; what is rotated is this long.
  config.kv_heads = config.heads;
  config.head_size = latent.rope_size;
  SYNCLINE_TRY(ReadField(json, "attention_bias", config.qkv_bias));
  config.o_bias = config.qkv_bias;
  return {};
}

// What both have, over what `config.experts` holds already.
base::Status ReadExperts(const Json& json, ModelConfig& config) {
  ExpertsConfig& experts = *config.experts;
  SYNCLINE_TRY(ReadField(json, "n_routed_experts", experts.experts));
  SYNCLINE_TRY(ReadField(json, "num_experts_per_tok", experts.per_token));
  SYNCLINE_TRY(ReadField(json, "moe_intermediate_size", experts.width));
  const Json* shared = json.Find("n_shared_experts");
  if (shared != nullptr && shared->is_null()) experts.shared = 0;
  SYNCLINE_TRY(ReadField(json, "n_shared_experts", experts.shared));
  SYNCLINE_TRY(ReadField(json, "n_group", experts.groups));
  SYNCLINE_TRY(ReadField(json, "topk_group", experts.groups_per_token));
  SYNCLINE_TRY(ReadField(json, "routed_scaling_factor", experts.scale));
  SYNCLINE_TRY(ReadField(json, "first_k_dense_replace", experts.first_dense));
  SYNCLINE_TRY(ReadField(json, "moe_layer_freq", experts.step));
  // In the checkpoint they follow the model's own layers.
  return ReadField(json, "num_nextn_predict_layers", config.draft_layers);
}

base::Status ReadV2(const Json& json, ModelConfig& config) {
  SYNCLINE_TRY(ReadLatent(json, config));
  SYNCLINE_TRY(ReadField(json, "mlp_bias", config.mlp_bias));
  config.experts = {.experts = 64, .width = 1407, .shared = 2};
  SYNCLINE_TRY(ReadExperts(json, config));
  std::string scoring = "softmax";
  SYNCLINE_TRY(ReadChoice(json, "scoring_func", {"softmax"}, scoring));
  std::string method = "greedy";
  SYNCLINE_TRY(ReadChoice(json, "topk_method", {"greedy", "group_limited_greedy"}, method));
  if (method == "greedy") config.experts->groups = config.experts->groups_per_token = 1;
  // norm_topk_prob is without effect in transformers, and false in the models that were published.
  return {};
}

base::Status ReadV3(const Json& json, ModelConfig& config) {
  SYNCLINE_TRY(ReadLatent(json, config));
  SYNCLINE_TRY(ReadField(json, "rope_interleave", config.latent->interleaved));
  config.experts = {.experts = 256,
                    .per_token = 8,
                    .width = 2048,
                    .shared = 1,
                    .groups = 8,
                    .groups_per_token = 4,
                    .scoring = ExpertsConfig::Scoring::kSigmoid,
                    .group_score = ExpertsConfig::GroupScore::kBestTwo,
                    .normalise = true,
                    .scale = 2.5,
                    .correction_bias = true,
                    .first_dense = 3};
  SYNCLINE_TRY(ReadExperts(json, config));
  SYNCLINE_TRY(ReadField(json, "norm_topk_prob", config.experts->normalise));
  std::string scoring = "sigmoid";
  SYNCLINE_TRY(ReadChoice(json, "scoring_func", {"sigmoid"}, scoring));
  std::string method = "noaux_tc";
  return ReadChoice(json, "topk_method", {"noaux_tc"}, method);
}

}  // namespace

extern const Architecture kDeepseekV2;
const Architecture kDeepseekV2 = {"DeepseekV2ForCausalLM", ReadV2, PlanLatentLayer};

extern const Architecture kDeepseekV3;
const Architecture kDeepseekV3 = {"DeepseekV3ForCausalLM", ReadV3, PlanLatentLayer};

}  // namespace syncline::model
