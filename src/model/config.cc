#include "model/config.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

using base::Code;
using base::Json;

// A configuration is a few kilobytes; more is not read.
constexpr std::uint64_t kMaxConfigBytes = 16 << 20;
// Over all layers. Each has tensors, and so a place in the plan.
constexpr std::uint64_t kMaxExperts = 1 << 18;
constexpr std::uint32_t kMaxDraftLayers = 64;

base::Result<Json> ReadJsonFile(base::FileSystem& files, const std::string& path) {
  SYNCLINE_ASSIGN(const std::string text, base::ReadText(files, path, kMaxConfigBytes));
  auto json = base::ParseJson(text);
  if (!json) return base::Annotate(json.error(), path);
  return json;
}

base::Status AddEndTokens(const Json& config, std::vector<std::int32_t>& tokens) {
  const Json* field = config.Find("eos_token_id");
  if (field == nullptr || field->is_null()) return {};
  const Json::Array single = {*field};
  for (const Json& entry : field->array() != nullptr ? *field->array() : single) {
    const auto* id = entry.unsigned_integer();
    if (id == nullptr || *id > 0x7fffffff) {
      return base::Fail(Code::kCorrupt, fmt::format("eos_token_id: expected token ids, found {}",
                                                    ToText(*field).substr(0, 80)));
    }
    const auto token = static_cast<std::int32_t>(*id);
    if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
  }
  return {};
}

base::Status RequirePositive(std::string_view name, std::uint32_t value) {
  // The product of any two must stay far below 2^64.
  if (value > 0 && value < (1U << 28)) return {};
  return base::Fail(
      Code::kCorrupt,
      fmt::format("{}: expected a positive number below 2^28, found {}", name, value));
}

// Before anything of the size of the layers is made.
base::Status CheckLayers(const ModelConfig& config) {
  SYNCLINE_TRY(RequirePositive("num_hidden_layers", config.layers));
  if (config.layers <= 10000) return {};
  return base::Fail(Code::kCorrupt,
                    fmt::format("num_hidden_layers: {} is beyond any model", config.layers));
}

base::Status Require(bool good, std::string_view what) {
  if (good) return {};
  return base::Fail(Code::kCorrupt, std::string(what));
}

base::Status CheckExperts(const ModelConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  SYNCLINE_TRY(RequirePositive("number of experts", experts.experts));
  SYNCLINE_TRY(RequirePositive("num_experts_per_tok", experts.per_token));
  SYNCLINE_TRY(RequirePositive("moe_intermediate_size", experts.width));
  SYNCLINE_TRY(RequirePositive("number of expert groups", experts.groups));
  SYNCLINE_TRY(RequirePositive("number of expert groups of a token", experts.groups_per_token));
  SYNCLINE_TRY(RequirePositive("every how many layers there are experts", experts.step));
  SYNCLINE_TRY(Require(
      std::uint64_t{experts.experts} * config.layers <= kMaxExperts,
      fmt::format("{} experts in {} layers are beyond any model", experts.experts, config.layers)));
  SYNCLINE_TRY(Require(std::uint64_t{experts.shared} * experts.width < (1U << 28),
                       fmt::format("n_shared_experts: {} is beyond any model", experts.shared)));
  SYNCLINE_TRY(Require(experts.per_token <= experts.experts,
                       fmt::format("num_experts_per_tok ({}) is larger than the number of experts "
                                   "({})",
                                   experts.per_token, experts.experts)));
  SYNCLINE_TRY(Require(std::isfinite(experts.scale),
                       fmt::format("routed_scaling_factor: found {}", experts.scale)));
  if (experts.groups == 1 && experts.groups_per_token == 1) return {};
  SYNCLINE_TRY(Require(experts.experts % experts.groups == 0,
                       fmt::format("the number of experts ({}) is no multiple of n_group ({})",
                                   experts.experts, experts.groups)));
  SYNCLINE_TRY(Require(experts.groups_per_token <= experts.groups,
                       fmt::format("topk_group ({}) is larger than n_group ({})",
                                   experts.groups_per_token, experts.groups)));
  const std::uint32_t group = experts.experts / experts.groups;
  SYNCLINE_TRY(
      Require(std::uint64_t{group} * experts.groups_per_token >= experts.per_token,
              fmt::format("num_experts_per_tok: {} do not fit into topk_group ({}) groups of {}",
                          experts.per_token, experts.groups_per_token, group)));
  return Require(group >= 2 || experts.group_score == ExpertsConfig::GroupScore::kMax,
                 "n_group: groups are ranked by their best two experts, and have only one");
}

base::Status CheckLatent(const LatentConfig& latent) {
  if (latent.q_rank > 0) SYNCLINE_TRY(RequirePositive("q_lora_rank", latent.q_rank));
  SYNCLINE_TRY(RequirePositive("kv_lora_rank", latent.kv_rank));
  SYNCLINE_TRY(RequirePositive("qk_nope_head_dim", latent.nope_size));
  SYNCLINE_TRY(RequirePositive("qk_rope_head_dim", latent.rope_size));
  return RequirePositive("v_head_dim", latent.value_size);
}

base::Status CheckSizes(const ModelConfig& config) {
  SYNCLINE_TRY(RequirePositive("vocab_size", config.vocabulary));
  SYNCLINE_TRY(RequirePositive("hidden_size", config.hidden));
  SYNCLINE_TRY(RequirePositive("intermediate_size", config.intermediate));
  SYNCLINE_TRY(RequirePositive("num_attention_heads", config.heads));
  SYNCLINE_TRY(RequirePositive("num_key_value_heads", config.kv_heads));
  SYNCLINE_TRY(RequirePositive("head_dim", config.head_size));
  SYNCLINE_TRY(RequirePositive("max_position_embeddings", config.max_positions));
  if (config.heads % config.kv_heads != 0) {
    return base::Fail(Code::kCorrupt, fmt::format("num_attention_heads ({}) is no multiple of "
                                                  "num_key_value_heads ({})",
                                                  config.heads, config.kv_heads));
  }
  if (config.head_size % 2 != 0) {
    return base::Fail(Code::kCorrupt, fmt::format("{}: expected an even number, found {}",
                                                  config.latent ? "qk_rope_head_dim" : "head_dim",
                                                  config.head_size));
  }
  if (config.draft_layers > kMaxDraftLayers) {
    return base::Fail(
        Code::kCorrupt,
        fmt::format("num_nextn_predict_layers: {} is beyond any model", config.draft_layers));
  }
  if (config.experts) SYNCLINE_TRY(CheckExperts(config));
  if (config.latent) SYNCLINE_TRY(CheckLatent(*config.latent));
  return {};
}

base::Status ReadArchitectures(const Json& json, ModelConfig& config) {
  const Json* field = json.Find("architectures");
  if (field != nullptr && field->array() != nullptr) {
    for (const Json& name : *field->array()) {
      if (name.string() != nullptr) config.architectures.push_back(*name.string());
    }
  }
  if (config.architectures.size() == 1 && FindArchitecture(config.architecture()) != nullptr) {
    return {};
  }
  std::vector<std::string_view> served;
  for (const Architecture* architecture : Architectures()) served.push_back(architecture->name);
  return base::Fail(Code::kIncompatible,
                    fmt::format("architectures: served are {}; found {}", fmt::join(served, ", "),
                                field == nullptr ? "none" : ToText(*field).substr(0, 200)));
}

}  // namespace

bool ExpertsConfig::Has(std::uint32_t layer) const {
  return layer >= first_dense && (layer + phase) % step == 0 &&
         !std::ranges::binary_search(dense_layers, layer);
}

base::Result<ModelConfig> ParseModelConfig(const Json& json, quant::Fp8Scales scales) {
  if (json.object() == nullptr) return base::Fail(Code::kCorrupt, "expected a JSON object");
  ModelConfig config;
  SYNCLINE_TRY(ReadArchitectures(json, config));
  SYNCLINE_TRY(ReadField(json, "model_type", config.model_type));
  SYNCLINE_TRY(ReadField(json, "vocab_size", config.vocabulary));
  SYNCLINE_TRY(ReadField(json, "hidden_size", config.hidden));
  SYNCLINE_TRY(ReadField(json, "intermediate_size", config.intermediate));
  SYNCLINE_TRY(ReadField(json, "num_hidden_layers", config.layers));
  SYNCLINE_TRY(CheckLayers(config));
  SYNCLINE_TRY(ReadField(json, "num_attention_heads", config.heads));
  config.kv_heads = config.heads;
  SYNCLINE_TRY(ReadField(json, "num_key_value_heads", config.kv_heads));
  config.head_size = config.heads == 0 ? 0 : config.hidden / config.heads;
  SYNCLINE_TRY(ReadField(json, "head_dim", config.head_size));
  config.max_positions = 2048;
  SYNCLINE_TRY(ReadField(json, "max_position_embeddings", config.max_positions));
  SYNCLINE_TRY(ReadField(json, "rms_norm_eps", config.rms_norm_epsilon));
  SYNCLINE_TRY(ReadField(json, "tie_word_embeddings", config.tied_embeddings));
  SYNCLINE_TRY(FindArchitecture(config.architecture())->read(json, config));
  SYNCLINE_TRY(CheckSizes(config));
  std::string activation = "silu";
  SYNCLINE_TRY(ReadField(json, "hidden_act", activation));
  if (activation != "silu") {
    return base::Fail(Code::kIncompatible,
                      fmt::format("hidden_act: served is silu, found {}", activation));
  }
  SYNCLINE_ASSIGN(config.quantisation, quant::ReadQuantConfig(json, scales));
  SYNCLINE_ASSIGN(config.rope, ParseRopeConfig(json, config.max_positions));
  SYNCLINE_TRY(AddEndTokens(json, config.end_tokens));
  return config;
}

base::Result<ModelConfig> ReadModelConfig(base::FileSystem& files, const std::string& directory,
                                          quant::Fp8Scales scales) {
  const std::string path = directory + "/config.json";
  SYNCLINE_ASSIGN(const Json json, ReadJsonFile(files, path));
  auto config = ParseModelConfig(json, scales);
  if (!config) return base::Annotate(config.error(), path);
  const std::string generation_path = directory + "/generation_config.json";
  SYNCLINE_ASSIGN(const bool has_generation, base::Exists(files, generation_path));
  if (has_generation) {
    SYNCLINE_ASSIGN(const Json generation, ReadJsonFile(files, generation_path));
    const base::Status added = AddEndTokens(generation, config->end_tokens);
    if (!added) return base::Annotate(added.error(), generation_path);
  }
  return config;
}

}  // namespace syncline::model
