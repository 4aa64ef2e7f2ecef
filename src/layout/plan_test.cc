#include "layout/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/result_matchers.h"
#include "layout/digest.h"
#include "layout/pieces.h"
#include "layout/random_plan.h"

namespace syncline::layout {
namespace {

using base::ByteSpan;
using base::Code;
using base::MutableByteSpan;
using tensor::Dtype;
using Bytes = std::vector<std::byte>;
using Shape = std::vector<std::uint64_t>;

std::vector<MutableByteSpan> Spans(std::vector<Bytes>& memory) {
  return {memory.begin(), memory.end()};
}

std::vector<ByteSpan> ConstSpans(const std::vector<Bytes>& memory) {
  return {memory.begin(), memory.end()};
}

bool Bit(const Bytes& bytes, std::uint64_t i) {
  return (std::to_integer<int>(bytes[i / 8]) >> i % 8 & 1) != 0;
}

// Bit by bit.
void ScatterSlowly(const Plan& plan, std::size_t tensor, const Bytes& bytes,
                   std::vector<Bytes>& memory) {
  const std::uint64_t bits = tensor::Bits(plan.tensors()[tensor].dtype);
  for (const Piece& piece : plan.PiecesOf(tensor)) {
    const auto from = ElementsOf(plan.tensors()[tensor].shape, piece.source);
    const auto to = ElementsOf(plan.parameters()[piece.parameter].shape, piece.destination);
    RC_ASSERT(from.size() == to.size());
    Bytes& parameter = memory[piece.parameter];
    for (std::uint64_t i = 0; i < from.size() * bits; ++i) {
      const std::uint64_t place = to[i / bits] * bits + i % bits;
      const std::byte mask{static_cast<unsigned char>(1U << place % 8)};
      parameter[place / 8] &= ~mask;
      if (Bit(bytes, from[i / bits] * bits + i % bits)) parameter[place / 8] |= mask;
    }
  }
}

RC_GTEST_PROP(PlanTest, ScatterPutsEachByteInItsPlace, ()) {
  const RandomPlan random = MakeRandomPlan();
  const auto plan = BuildParts(random.parts);
  RC_ASSERT(plan.has_value());
  std::vector<Bytes> memory;
  for (const TensorSpec& spec : plan->parameters()) memory.emplace_back(spec.bytes(), std::byte{9});
  for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
    std::vector<Bytes> expected = memory;
    ScatterSlowly(*plan, i, random.tensor_bytes[i], expected);
    plan->Scatter(i, random.tensor_bytes[i], Spans(memory));
    RC_ASSERT(memory == expected);
  }
  RC_ASSERT(memory == random.parameter_bytes);
}

RC_GTEST_PROP(PlanTest, GatherIsTheInverseOfScatter, ()) {
  const RandomPlan random = MakeRandomPlan();
  const auto plan = BuildParts(random.parts);
  RC_ASSERT(plan.has_value());
  for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
    std::set<std::uint64_t> owned;
    for (const Piece& piece : plan->PiecesOf(i)) {
      if (!piece.owner) continue;
      for (const auto element : ElementsOf(plan->tensors()[i].shape, piece.source)) {
        RC_ASSERT(owned.insert(element).second);
      }
    }
    const Box all = WholeBox(plan->tensors()[i].shape);
    RC_ASSERT(plan->HoldsWhole(i) == (owned.size() == all.elements()));
    if (!plan->HoldsWhole(i)) continue;
    Bytes gathered(plan->tensors()[i].bytes());
    plan->Gather(i, ConstSpans(random.parameter_bytes), gathered);
    RC_ASSERT(gathered == random.tensor_bytes[i]);
  }
}

// What is not owned is not read.
TEST(PlanTest, GathersFromOwningPiecesOnly) {
  PlanBuilder builder;
  builder.AddWhole("a", "owned", Dtype::kU8, {2});
  const Box whole = WholeBox(Shape{2});
  const std::size_t copy = builder.AddParameter({"copy", Dtype::kU8, {2}});
  builder.AddPiece({0, copy, whole, whole, false});
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(builder).Build());
  const std::vector<Bytes> memory = {Bytes(2, std::byte{1}), Bytes(2, std::byte{2})};
  Bytes gathered(2);
  plan.Gather(0, ConstSpans(memory), gathered);
  EXPECT_EQ(gathered, memory[0]);
}

RC_GTEST_PROP(PlanTest, PiecesAreGroupedAndCoverEachParameterOnce, ()) {
  const RandomPlan random = MakeRandomPlan();
  const auto plan = BuildParts(random.parts);
  RC_ASSERT(plan.has_value());
  std::vector<std::vector<int>> writes;
  for (const TensorSpec& spec : plan->parameters()) {
    writes.emplace_back(WholeBox(spec.shape).elements());
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
    for (const Piece& piece : plan->PiecesOf(i)) {
      RC_ASSERT(&piece == &plan->pieces()[next++]);
      RC_ASSERT(piece.tensor == i);
      const tensor::Shape shape = plan->parameters()[piece.parameter].shape;
      for (const auto element : ElementsOf(shape, piece.destination)) {
        ++writes[piece.parameter][element];
      }
    }
  }
  RC_ASSERT(next == random.parts.pieces.size());
  for (const std::vector<int>& counts : writes) {
    RC_ASSERT(std::ranges::all_of(counts, [](int count) { return count == 1; }));
  }
}

// Runs that are longer than what is digested between two looks at the token.
TEST(PlanTest, DigestsOfLongRuns) {
  PlanBuilder builder;
  builder.AddStacked({{"a", Dtype::kBF16, {3, 700'001}}, {"b", Dtype::kBF16, {2, 700'001}}}, "ab");
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(builder).Build());
  std::vector<std::byte> memory(plan.parameters()[0].bytes());
  std::uint32_t next = 1;
  for (std::byte& byte : memory) byte = static_cast<std::byte>((next = next * 1664525 + 7) >> 24);
  const std::vector<base::ByteSpan> parameters = {memory};
  const base::ByteSpan b = parameters[0].subspan(plan.tensors()[0].bytes());
  base::CancelToken cancel;
  EXPECT_EQ(DigestOwned(plan, 1, parameters, &cancel), tensor::DigestOf(b, 2));
  cancel.Cancel();
  EXPECT_EQ(DigestOwned(plan, 1, parameters, &cancel), std::nullopt);
}

constexpr char kAttention[] = "model.layers.0.self_attn.";

Plan AttentionPlan() {
  const std::string prefix = kAttention;
  PlanBuilder builder;
  builder.AddWhole("model.embed_tokens.weight", "model.embed_tokens.weight", Dtype::kBF16, {9, 4});
  builder.AddStacked({{prefix + "q_proj.weight", Dtype::kBF16, {4, 4}},
                      {prefix + "k_proj.weight", Dtype::kBF16, {2, 4}},
                      {prefix + "v_proj.weight", Dtype::kBF16, {2, 4}}},
                     prefix + "qkv_proj.weight");
  builder.Alias("lm_head.weight", "model.embed_tokens.weight");
  builder.Skip("*.rotary_emb.inv_freq");
  builder.Skip("model.position_ids");
  builder.Skip("model.layers.4.*");
  return *std::move(builder).Build();
}

// The owned parts, put where their pieces say, are the tensors; digests are those of the bytes.
RC_GTEST_PROP(PlanTest, GathersWhatIsOwned, ()) {
  const RandomPlan random = MakeRandomPlan();
  const auto plan = BuildParts(random.parts);
  RC_ASSERT(plan.has_value());
  const std::vector<base::ByteSpan> parameters(random.parameter_bytes.begin(),
                                               random.parameter_bytes.end());
  for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
    const TensorSpec& spec = plan->tensors()[i];
    const std::vector<OwnedPart> owned = TakeOwned(*plan, i, parameters);
    std::uint64_t bytes = 0;
    std::size_t next = 0;
    std::vector<std::byte> only_owned(spec.bytes());  // zeros elsewhere
    for (const Piece& piece : plan->PiecesOf(i)) {
      if (!piece.owner) continue;
      std::vector<std::byte> expected(PieceBytes(spec.dtype, piece.source));
      TakeBox(spec, piece.source, random.tensor_bytes[i], expected);
      const OwnedPart& part = owned.at(next++);
      RC_ASSERT(part.box == piece.source);
      RC_ASSERT(part.bytes == expected);
      PutBox(spec, part.box, part.bytes, only_owned);
      bytes += part.bytes.size();
    }
    RC_ASSERT(next == owned.size());
    RC_ASSERT(bytes == plan->OwnedBytes(i));
    RC_ASSERT(DigestOwned(*plan, i, parameters) ==
              tensor::DigestOf(only_owned, tensor::DigestUnitBytes(spec.dtype)));
    if (plan->HoldsWhole(i)) RC_ASSERT(only_owned == random.tensor_bytes[i]);
  }
}

TEST(PlanTest, KnowsTensorsAliasesAndSkippedNames) {
  const Plan plan = AttentionPlan();
  EXPECT_EQ(plan.FindTensor("model.embed_tokens.weight"), 0U);
  EXPECT_EQ(plan.FindTensor("lm_head.weight"), Plan::npos);
  EXPECT_EQ(plan.FindTensor(std::string(kAttention) + "qkv_proj.weight"), Plan::npos);
  EXPECT_EQ(plan.FindAlias("lm_head.weight"), 0U);
  EXPECT_EQ(plan.FindAlias("model.embed_tokens.weight"), Plan::npos);
  EXPECT_EQ(plan.FindParameter("lm_head.weight"), Plan::npos);
  EXPECT_TRUE(plan.IsSkipped("model.layers.3.rotary_emb.inv_freq"));
  EXPECT_TRUE(plan.IsSkipped("model.position_ids"));
  EXPECT_FALSE(plan.IsSkipped("model.position_ids.weight"));
  EXPECT_FALSE(plan.IsSkipped("my.model.position_ids"));
  EXPECT_FALSE(plan.IsSkipped("model.layers.3.rotary_emb.inv_freq2"));
  EXPECT_FALSE(plan.IsSkipped("model.embed_tokens.weight"));
  EXPECT_TRUE(plan.IsSkipped("model.layers.4.mlp.down_proj.weight"));
  EXPECT_FALSE(plan.IsSkipped("model.layers.40.mlp.down_proj.weight"));
  EXPECT_FALSE(plan.IsSkipped("my.model.layers.4.mlp.down_proj.weight"));
}

TEST(PlanTest, MatchesNameDtypeAndShape) {
  const Plan plan = AttentionPlan();
  const std::string key = std::string(kAttention) + "k_proj.weight";
  ASSERT_OK_AND_ASSIGN(const std::size_t index, plan.Match(key, Dtype::kBF16, Shape{2, 4}));
  EXPECT_EQ(index, plan.FindTensor(key));
  ASSERT_OK_AND_ASSIGN(const std::size_t tied,
                       plan.Match("lm_head.weight", Dtype::kBF16, Shape{9, 4}));
  EXPECT_EQ(tied, 0U);
  EXPECT_ERROR(plan.Match(key, Dtype::kF32, Shape{2, 4}), Code::kInvalidArgument,
               "k_proj.weight has dtype F32, expected BF16");
  EXPECT_ERROR(plan.Match(key, Dtype::kBF16, Shape{4, 2}), Code::kInvalidArgument,
               "k_proj.weight has shape [4, 2], expected [2, 4]");
  EXPECT_ERROR(plan.Match(key, Dtype::kBF16, Shape{2, 4, 1}), Code::kInvalidArgument,
               "expected [2, 4]");
  EXPECT_ERROR(plan.Match("lm_head.weight", Dtype::kBF16, Shape{9, 5}), Code::kInvalidArgument,
               "lm_head.weight has shape [9, 5], expected [9, 4]");
}

TEST(PlanTest, UnknownNamesComeWithAdvice) {
  const Plan plan = AttentionPlan();
  const auto match = [&](const std::string& name) {
    return plan.Match(name, Dtype::kBF16, Shape{9, 4});
  };
  EXPECT_ERROR(match("model.layers.0.self_attn.k_proj.weigth"), Code::kNotFound,
               "did you mean model.layers.0.self_attn.k_proj.weight?");
  EXPECT_ERROR(match("lm_heads.weight"), Code::kNotFound, "did you mean lm_head.weight?");
  EXPECT_ERROR(match("model.layers.0.self_attn.qkv_proj.weight"), Code::kNotFound,
               "model.layers.0.self_attn.qkv_proj.weight is a fused parameter of this engine; "
               "send model.layers.0.self_attn.q_proj.weight, "
               "model.layers.0.self_attn.k_proj.weight and "
               "model.layers.0.self_attn.v_proj.weight");
  EXPECT_ERROR(match("model.position_ids"), Code::kNotFound,
               "no parameter needs tensor model.position_ids");
  EXPECT_ERROR(match("vision_tower.patch_embedding.bias"), Code::kNotFound,
               "the model has no tensor vision_tower.patch_embedding.bias");
  EXPECT_THAT(match("zzz").error().message, testing::Not(testing::HasSubstr("did you mean")));
}

}  // namespace
}  // namespace syncline::layout
