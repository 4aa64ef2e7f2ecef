#include "model/architecture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "model/small_ranks.h"

namespace syncline::model {
namespace {

using base::Code;
using tensor::Dtype;

// Ways to divide a model among ranks.
std::vector<layout::Shard> Divisions() {
  std::vector<layout::Shard> divisions;
  for (const std::uint32_t size : {1U, 2U, 4U}) {
    for (const std::uint32_t groups : {1U, 2U}) {
      if (groups <= size) divisions.push_back({.size = size, .expert_groups = groups});
    }
  }
  return divisions;
}

bool CanDivide(const ModelConfig& config, const layout::Shard& shard) {
  if (config.heads % shard.size != 0) return false;
  if (!config.latent && config.kv_heads % shard.size != 0 && shard.size % config.kv_heads != 0) {
    return false;
  }
  bool has_dense = false;
  bool has_mixture = false;
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    (config.experts && config.experts->Has(i) ? has_mixture : has_dense) = true;
  }
  if (has_dense && config.intermediate % shard.size != 0) return false;
  if (!has_mixture) return true;
  const ExpertsConfig& experts = *config.experts;
  return experts.experts % shard.expert_groups == 0 && experts.width % shard.expert_shards() == 0 &&
         experts.shared * experts.width % shard.size == 0;
}

void CheckPlans(const SmallModel& model, const layout::Shard& division) {
  std::vector<std::uint64_t> owned(model.tensors.size());
  for (std::uint32_t rank = 0; rank < division.size; ++rank) {
    layout::Shard shard = division;
    shard.rank = rank;
    const auto made = PlanSmall(model, shard);
    if (!CanDivide(ParseSmall(model), shard)) {
      RC_ASSERT(!made.has_value());
      RC_ASSERT(made.error().code == Code::kInvalidArgument);
      return;
    }
    if (!made) RC_FAIL(made.error().message);
    const layout::Plan& plan = made->plan;
    RC_ASSERT(plan.tensors().size() == model.tensors.size());
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
      const layout::TensorSpec& spec = model.tensors[i];
      const auto found = plan.Match(spec.name, spec.dtype, spec.shape);
      if (!found) RC_FAIL(found.error().message);
      owned[i] += plan.OwnedBytes(*found);
    }
  }
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    RC_ASSERT(owned[i] == model.tensors[i].bytes());
  }
}

// What transformers saves is what the plans take, no more and no less, and the ranks share it.
RC_GTEST_PROP(Architecture, PlansTakeWhatTransformersSaves, ()) {
  for (const Architecture* architecture : Architectures()) {
    const SmallModel model =
        MakeSmallModel(architecture->name, *rc::gen::arbitrary<std::uint32_t>(), Dtype::kBF16,
                       *rc::gen::arbitrary<bool>());
    if (model.config.empty()) RC_FAIL(std::string(architecture->name) + " has no small model");
    RC_LOG(model.config);
    for (const layout::Shard& division : Divisions()) CheckPlans(model, division);
  }
}

base::Result<ModelConfig> Parse(const std::string& fields) {
  SYNCLINE_ASSIGN(const base::Json json, base::ParseJson("{" + fields + R"(,
      "vocab_size": 64, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_experts_per_tok": 2})"));
  return ParseModelConfig(json);
}

base::Result<ModelConfig> V2(const std::string& fields) {
  return Parse(R"("architectures": ["DeepseekV2ForCausalLM"])" + fields);
}
base::Result<ModelConfig> V3(const std::string& fields) {
  return Parse(R"("architectures": ["DeepseekV3ForCausalLM"])" + fields);
}
base::Result<ModelConfig> Qwen3Moe(const std::string& fields) {
  return Parse(R"("architectures": ["Qwen3MoeForCausalLM"])" + fields);
}

TEST(Architecture, KimiK2IsADeepseekV3) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, V3(R"(, "model_type": "kimi_k2", "n_group": 1,
      "topk_group": 1, "n_routed_experts": 384, "scoring_func": "sigmoid", "first_k_dense_replace":
      1, "topk_method": "noaux_tc", "num_nextn_predict_layers": 0,
      "routed_scaling_factor": 2.827)"));
  EXPECT_EQ(config.experts->experts, 384U);
  EXPECT_EQ(config.experts->scale, 2.827);
  EXPECT_FALSE(config.experts->Has(0));
  EXPECT_TRUE(config.experts->Has(1));
}

TEST(Architecture, MixturesAreInTheLayersThatTheConfigurationNames) {
  const auto layers = [](const ModelConfig& config) {
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < 8; ++i) {
      if (config.experts && config.experts->Has(i)) found.push_back(i);
    }
    return found;
  };
  using testing::ElementsAre;
  ASSERT_OK_AND_ASSIGN(const ModelConfig v2, V2(R"(, "first_k_dense_replace": 1,
                                                    "moe_layer_freq": 2)"));
  EXPECT_THAT(layers(v2), ElementsAre(2, 4, 6));
  ASSERT_OK_AND_ASSIGN(const ModelConfig qwen, Qwen3Moe(R"(, "decoder_sparse_step": 2,
                                                            "mlp_only_layers": [9, 3])"));
  EXPECT_THAT(layers(qwen), ElementsAre(1, 5, 7));
  ASSERT_OK_AND_ASSIGN(const ModelConfig dense, Qwen3Moe(R"(, "num_experts": 0)"));
  EXPECT_THAT(layers(dense), ElementsAre());
}

TEST(Architecture, DraftLayersOfTheCheckpointAreSkipped) {
  const auto plan = [](const char* drafts) {
    return PlanModel(
        V3(std::string(R"(, "n_routed_experts": 16, "num_nextn_predict_layers": )") + drafts)
            .value(),
        {}, [](std::string_view) { return Dtype::kBF16; });
  };
  ASSERT_OK_AND_ASSIGN(const DecoderPlan one, plan("1"));
  EXPECT_TRUE(one.plan.IsSkipped("model.layers.4.eh_proj.weight"));
  EXPECT_TRUE(one.plan.IsSkipped("model.layers.4.mlp.experts.3.up_proj.weight"));
  EXPECT_FALSE(one.plan.IsSkipped("model.layers.5.eh_proj.weight"));
  EXPECT_FALSE(one.plan.IsSkipped("model.layers.40.eh_proj.weight"));
  EXPECT_FALSE(one.plan.IsSkipped("model.layers.3.eh_proj.weight"));
  ASSERT_OK_AND_ASSIGN(const DecoderPlan none, plan("0"));
  EXPECT_FALSE(none.plan.IsSkipped("model.layers.4.eh_proj.weight"));
}

TEST(Architecture, WindowsAreThoseOfTheConfiguration) {
  const auto parse = [](const std::string& architecture, const std::string& fields) {
    return Parse(R"("architectures": [")" + architecture + R"(ForCausalLM"])" + fields);
  };
  ASSERT_OK_AND_ASSIGN(const ModelConfig missing, parse("Mistral", ""));
  EXPECT_EQ(missing.window, 4096U);
  ASSERT_OK_AND_ASSIGN(const ModelConfig none, parse("Mistral", R"(, "sliding_window": null)"));
  EXPECT_EQ(none.window, 0U);
  ASSERT_OK_AND_ASSIGN(const ModelConfig off, parse("Qwen2", R"(, "sliding_window": 9)"));
  EXPECT_EQ(off.window, 0U);
  ASSERT_OK_AND_ASSIGN(const ModelConfig some,
                       parse("Qwen3", R"(, "sliding_window": 9, "use_sliding_window": true,
                             "max_window_layers": 3)"));
  EXPECT_EQ(some.window, 9U);
  EXPECT_EQ(some.windowed_layers, (std::vector<bool>{false, false, false, true}));
  ASSERT_OK_AND_ASSIGN(const ModelConfig listed,
                       parse("Qwen2", R"(, "use_sliding_window": true, "layer_types":
          ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])"));
  EXPECT_EQ(listed.windowed_layers, (std::vector<bool>{true, false, false, true}));
  EXPECT_ERROR(parse("Qwen2", R"(, "use_sliding_window": true, "layer_types": ["full_attention"])"),
               Code::kCorrupt, "list of 4");
  EXPECT_ERROR(parse("Qwen2", R"(, "use_sliding_window": true, "layer_types":
                         ["full_attention", "full_attention", "full_attention", "linear"])"),
               Code::kIncompatible, "linear");
}

TEST(Architecture, WhatIsNotServedIsRefused) {
  EXPECT_ERROR(V3(R"(, "scoring_func": "softmax")"), Code::kIncompatible, "scoring_func");
  EXPECT_ERROR(V3(R"(, "topk_method": "greedy")"), Code::kIncompatible, "noaux_tc");
  EXPECT_ERROR(V2(R"(, "topk_method": "noaux_tc")"), Code::kIncompatible,
               "greedy and group_limited_greedy");
  EXPECT_ERROR(V2(R"(, "scoring_func": "sigmoid")"), Code::kIncompatible, "softmax");
  EXPECT_ERROR(V3(R"(, "hidden_act": "gelu")"), Code::kIncompatible, "gelu");
  EXPECT_ERROR(V3(R"(, "quantization_config": {"quant_method": "fp8"})"), Code::kIncompatible,
               "quantization_config.weight_block_size");
}

TEST(Architecture, WhatCannotBeIsNamed) {
  EXPECT_ERROR(V3(R"(, "n_routed_experts": 0)"), Code::kCorrupt, "number of experts");
  EXPECT_ERROR(V3(R"(, "n_routed_experts": 200000)"), Code::kCorrupt, "beyond any model");
  EXPECT_ERROR(V3(R"(, "n_routed_experts": 30)"), Code::kCorrupt, "n_group (8)");
  EXPECT_ERROR(V3(R"(, "n_routed_experts": 8)"), Code::kCorrupt, "best two");
  EXPECT_ERROR(V3(R"(, "topk_group": 9)"), Code::kCorrupt, "topk_group (9)");
  EXPECT_ERROR(V2(R"(, "topk_method": "group_limited_greedy", "n_group": 64, "topk_group": 1)"),
               Code::kCorrupt, "do not fit");
  EXPECT_ERROR(V2(R"(, "moe_layer_freq": 0)"), Code::kCorrupt, "every how many layers");
  EXPECT_ERROR(V3(R"(, "num_nextn_predict_layers": 4000000000)"), Code::kCorrupt,
               "num_nextn_predict_layers");
  EXPECT_ERROR(V3(R"(, "qk_rope_head_dim": 5)"), Code::kCorrupt, "qk_rope_head_dim");
  EXPECT_ERROR(V3(R"(, "v_head_dim": 0)"), Code::kCorrupt, "v_head_dim");
  EXPECT_ERROR(V3(R"(, "n_shared_experts": 4000000)"), Code::kCorrupt, "n_shared_experts");
  EXPECT_ERROR(Qwen3Moe(R"(, "num_experts": 1)"), Code::kCorrupt, "num_experts_per_tok (2)");
  EXPECT_ERROR(Qwen3Moe(R"(, "mlp_only_layers": [-1])"), Code::kCorrupt, "mlp_only_layers");
  EXPECT_ERROR(Qwen3Moe(R"(, "mlp_only_layers": 3)"), Code::kCorrupt, "mlp_only_layers");
}

}  // namespace
}  // namespace syncline::model
