#include "model/decoder_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "model/architecture.h"
#include "model/parameters.h"

namespace syncline::model {
namespace {

using tensor::Dtype;

ModelConfig SmolLm2() {
  ModelConfig config;
  config.vocabulary = 49152;
  config.hidden = 576;
  config.intermediate = 1536;
  config.layers = 30;
  config.heads = 9;
  config.kv_heads = 3;
  config.head_size = 64;
  config.tied_embeddings = true;
  config.architectures = {"LlamaForCausalLM"};
  return config;
}

base::Result<DecoderPlan> Plan(const ModelConfig& config) {
  return PlanModel(config, {}, [](std::string_view) { return Dtype::kBF16; });
}

const GroupedAttentionParameters& AttentionOf(const LayerParameters& layer) {
  return std::get<GroupedAttentionParameters>(layer.attention);
}
const GatedMlpParameters& MlpOf(const LayerParameters& layer) {
  return std::get<GatedMlpParameters>(layer.mlp);
}

TEST(DecoderPlan, SmolLm2Has272Tensors) {
  ASSERT_OK_AND_ASSIGN(const DecoderPlan llama, Plan(SmolLm2()));
  EXPECT_EQ(llama.plan.tensors().size(), 272U);
  EXPECT_EQ(llama.plan.parameters().size(), 2 + 30 * 6U);
  std::uint64_t bytes = 0;
  for (const auto& tensor : llama.plan.tensors()) bytes += tensor.bytes();
  EXPECT_EQ(bytes, 2 * std::uint64_t{134515008});
  EXPECT_EQ(llama.head, llama.embedding);
  EXPECT_NE(llama.plan.FindAlias("lm_head.weight"), layout::Plan::npos);
  EXPECT_TRUE(llama.plan.IsSkipped("model.layers.3.self_attn.rotary_emb.inv_freq"));
  const auto& qkv = llama.plan.parameters()[AttentionOf(llama.layers[29]).qkv.weight];
  EXPECT_EQ(qkv.name, "model.layers.29.self_attn.qkv_proj.weight");
  EXPECT_THAT(qkv.shape, testing::ElementsAre(960, 576));
}

TEST(DecoderPlan, UntiedHeadIsAParameter) {
  ModelConfig config = SmolLm2();
  config.tied_embeddings = false;
  ASSERT_OK_AND_ASSIGN(const DecoderPlan llama, Plan(config));
  EXPECT_NE(llama.head, llama.embedding);
  EXPECT_EQ(llama.plan.parameters()[llama.head].name, "lm_head.weight");
  EXPECT_EQ(llama.plan.FindAlias("lm_head.weight"), layout::Plan::npos);
}

// Whatever the sizes: the numbers in a DecoderPlan name the right parameters, and loading then
// exporting gives the same bytes.
RC_GTEST_PROP(DecoderPlan, LoadingThenExportingIsTheIdentity, ()) {
  ModelConfig config;
  config.vocabulary = *rc::gen::inRange<std::uint32_t>(1, 40);
  config.hidden = *rc::gen::inRange<std::uint32_t>(1, 20);
  config.intermediate = *rc::gen::inRange<std::uint32_t>(1, 20);
  config.layers = *rc::gen::inRange<std::uint32_t>(1, 4);
  config.kv_heads = *rc::gen::inRange<std::uint32_t>(1, 4);
  config.heads = config.kv_heads * *rc::gen::inRange<std::uint32_t>(1, 4);
  config.head_size = 2 * *rc::gen::inRange<std::uint32_t>(1, 5);
  config.tied_embeddings = *rc::gen::arbitrary<bool>();
  config.architectures = {"LlamaForCausalLM"};
  config.qkv_bias = *rc::gen::arbitrary<bool>();
  config.mlp_bias = *rc::gen::arbitrary<bool>();
  auto made = Plan(config);
  RC_ASSERT(made.has_value());
  const layout::Plan& plan = made->plan;
  const LayerParameters& last = made->layers.back();
  RC_ASSERT((AttentionOf(last).qkv.bias != kNone) == config.qkv_bias);
  RC_ASSERT((MlpOf(last).down.bias != kNone) == config.mlp_bias);
  const std::string prefix = "model.layers." + std::to_string(config.layers - 1) + ".";
  RC_ASSERT(plan.parameters()[MlpOf(last).down.weight].name == prefix + "mlp.down_proj.weight");
  RC_ASSERT(plan.parameters()[last.post_norm].name == prefix + "post_attention_layernorm.weight");
  RC_ASSERT(plan.parameters()[made->final_norm].name == "model.norm.weight");

  auto parameters = Parameters::Create(plan);
  RC_ASSERT(parameters.has_value());
  const auto live = parameters->live();
  std::vector<std::vector<std::byte>> sent;
  std::uint32_t next = 1;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    auto& bytes = sent.emplace_back(plan.tensors()[i].bytes());
    for (std::byte& value : bytes) value = static_cast<std::byte>(next = next * 1103515245 + 12345);
    plan.Scatter(i, bytes, live);
  }
  const std::vector<base::ByteSpan> views(live.begin(), live.end());
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    std::vector<std::byte> found(sent[i].size());
    plan.Gather(i, views, found);
    RC_ASSERT(found == sent[i]);
  }
}

TEST(Parameters, CommitCopiesThoseThatAreNamedAndKeepsAddresses) {
  ModelConfig config = SmolLm2();
  config.layers = 2;
  ASSERT_OK_AND_ASSIGN(const DecoderPlan llama, Plan(config));
  ASSERT_OK_AND_ASSIGN(Parameters parameters, Parameters::Create(llama.plan));
  ASSERT_OK_AND_ASSIGN(const auto staging, parameters.Staging());
  std::vector<const std::byte*> addresses;
  for (std::size_t i = 0; i < staging.size(); ++i) {
    const base::MutableByteSpan live = parameters.live()[i];
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(live.data()) % Parameters::kAlignment, 0U);
    EXPECT_EQ(live.size(), llama.plan.parameters()[i].bytes());
    addresses.push_back(live.data());
    std::ranges::fill(live, static_cast<std::byte>(i));
    std::ranges::fill(staging[i], static_cast<std::byte>(100 + i));
  }
  base::ThreadPool pool(2);
  const std::vector<std::size_t> named = {0, 3, 4};
  parameters.Commit(named, pool);
  for (std::size_t i = 0; i < staging.size(); ++i) {
    const base::MutableByteSpan live = parameters.live()[i];
    EXPECT_EQ(live.data(), addresses[i]);
    const auto is = [](std::size_t value) {
      return [value](std::byte b) { return b == static_cast<std::byte>(value); };
    };
    const bool committed = std::ranges::count(named, i) > 0;
    EXPECT_TRUE(std::ranges::all_of(live, is(committed ? 100 + i : i)));
    EXPECT_TRUE(std::ranges::all_of(staging[i], is(100 + i)));
  }
}

}  // namespace
}  // namespace syncline::model
