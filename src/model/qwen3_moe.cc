// Qwen3-MoE (30B-A3B, 235B-A22B): Qwen3's attention, and a mixture of experts in most layers.
#include <algorithm>

#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

using base::Json;

base::Status ReadExperts(const Json& json, ModelConfig& config) {
  ExpertsConfig experts{.experts = 128, .per_token = 8, .width = 768};
  SYNCLINE_TRY(ReadField(json, "num_local_experts", experts.experts));  // in newer files
  SYNCLINE_TRY(ReadField(json, "num_experts", experts.experts));
  SYNCLINE_TRY(ReadField(json, "num_experts_per_tok", experts.per_token));
  SYNCLINE_TRY(ReadField(json, "moe_intermediate_size", experts.width));
  SYNCLINE_TRY(ReadField(json, "norm_topk_prob", experts.normalise));
  SYNCLINE_TRY(ReadField(json, "decoder_sparse_step", experts.step));
  SYNCLINE_TRY(ReadField(json, "mlp_only_layers", experts.dense_layers));
  std::ranges::sort(experts.dense_layers);
  experts.phase = 1;
  if (experts.experts == 0) return {};
  config.experts = std::move(experts);
  return {};
}

base::Status ReadQwen3Moe(const Json& json, ModelConfig& config) {
  config.qk_norm = true;
  SYNCLINE_TRY(ReadField(json, "attention_bias", config.qkv_bias));
  config.o_bias = config.qkv_bias;
  bool has_window = false;  // of all layers
  SYNCLINE_TRY(ReadField(json, "use_sliding_window", has_window));
  if (has_window) {
    if (json.Find("sliding_window") == nullptr) config.window = 4096;
    SYNCLINE_TRY(ReadField(json, "sliding_window", config.window));
  }
  return ReadExperts(json, config);
}

}  // namespace

extern const Architecture kQwen3Moe;
const Architecture kQwen3Moe = {"Qwen3MoeForCausalLM", ReadQwen3Moe, PlanGroupedLayer};

}  // namespace syncline::model
