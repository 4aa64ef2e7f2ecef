// What it takes to plan large models on one rank of eight, for bench/plans.py. There are no weights.
//
//   plans_bench [--rounds N]
//
// Prints a JSON list, one object a model: `model`; `tensors`, `parameters` and `pieces` of the
// plan; `seconds`, the median of the rounds, and `best`; `bytes` by which the heap has grown for
// the plan. Each round's plan must have as many tensors as the model's checkpoint, counted by hand.
#include <fmt/core.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "base/json.h"
#include "model/architecture.h"

namespace syncline::bench {
namespace {

using base::Json;
using base::Result;

constexpr layout::Shard kShard = {.rank = 3, .size = 8, .expert_groups = 8};

// Values of the models' public config.json, in bf16.
constexpr const char* kDeepseekV3 = R"({"architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8,
    "topk_group": 4, "num_experts_per_tok": 8, "moe_layer_freq": 1, "first_k_dense_replace": 3,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "num_nextn_predict_layers": 1})";
constexpr const char* kQwen3Moe = R"({"architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000})";
constexpr const char* kKimiK2 = R"({"architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2", "vocab_size": 163840, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": LAYERS,
    "num_attention_heads": 64, "num_key_value_heads": 64, "n_shared_experts": 1,
    "n_routed_experts": 384, "routed_scaling_factor": 2.827, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "norm_topk_prob": true, "scoring_func": "sigmoid",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "rope_theta": 50000,
    "num_nextn_predict_layers": 0})";

std::string KimiK2(const char* layers) {
  std::string config = kKimiK2;
  constexpr std::string_view kPlace = "LAYERS";
  return config.replace(config.find(kPlace), kPlace.size(), layers);
}

std::size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

Result<Json> Measure(const std::string& name, const std::string& text, std::size_t tensors,
                     std::size_t rounds) {
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_ASSIGN(const model::ModelConfig config, model::ParseModelConfig(json));
  std::vector<double> seconds;
  std::size_t bytes = 0;
  std::size_t parameters = 0;
  std::size_t pieces = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t before = HeapBytes();
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_ASSIGN(
        const model::DecoderPlan decoder,
        model::PlanModel(config, kShard, [](std::string_view) { return tensor::Dtype::kBF16; }));
    const auto took = std::chrono::steady_clock::now() - begin;
    seconds.push_back(std::chrono::duration<double>(took).count());
    bytes = HeapBytes() - before;
    parameters = decoder.plan.parameters().size();
    pieces = decoder.plan.pieces().size();
    if (decoder.plan.tensors().size() != tensors) {
      return base::Fail(base::Code::kInternal, fmt::format("{}: {} tensors, expected {}", name,
                                                           decoder.plan.tensors().size(), tensors));
    }
  }
  std::ranges::sort(seconds);
  return Json(Json::Object{{"model", name},
                           {"tensors", std::uint64_t{tensors}},
                           {"parameters", std::uint64_t{parameters}},
                           {"pieces", std::uint64_t{pieces}},
                           {"seconds", seconds[seconds.size() / 2]},
                           {"best", seconds.front()},
                           {"bytes", std::uint64_t{bytes}}});
}

Result<Json> MeasureAll(std::size_t rounds) {
  Json::Array all;
  const auto add = [&](const std::string& name, const std::string& config,
                       std::size_t tensors) -> base::Status {
    SYNCLINE_ASSIGN(Json measured, Measure(name, config, tensors, rounds));
    all.push_back(std::move(measured));
    return {};
  };
  // Three of embedding, norm and head; 12 of a dense layer; of a mixture 14 and 3 of each expert.
  SYNCLINE_TRY(add("DeepSeek-V3", kDeepseekV3, 3 + 3 * 12 + 58 * (14 + 3 * 256)));
  SYNCLINE_TRY(add("Qwen3-235B-A22B", kQwen3Moe, 3 + 94 * (9 + 3 * 128)));
  SYNCLINE_TRY(add("Kimi-K2", KimiK2("61"), 3 + 12 + 60 * (14 + 3 * 384)));
  SYNCLINE_TRY(add("Kimi-K2 of 80 layers", KimiK2("80"), 3 + 12 + 79 * (14 + 3 * 384)));
  return Json(std::move(all));
}

}  // namespace
}  // namespace syncline::bench

int main(int argc, char** argv) {
  CLI::App app("Plans large models on one rank of eight.");
  std::size_t rounds = 5;
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const auto report = syncline::bench::MeasureAll(rounds);
  if (!report) {
    fmt::print(stderr, "plans_bench: {}\n", report.error().message);
    return Info(report.error().code).exit_code;
  }
  fmt::print("{}\n", syncline::base::ToText(*report));
}
