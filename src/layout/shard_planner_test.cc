#include "layout/shard_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/result_matchers.h"
#include "layout/digest.h"
#include "layout/pieces.h"
#include "layout/random_model.h"

namespace syncline::layout {
namespace {

using base::Code;
using tensor::Dtype;

using Memory = std::vector<std::vector<std::byte>>;

Memory Load(const RandomModel& model, const Plan& plan) {
  Memory memory = MakeMemory(plan, std::byte{0xEE});
  const std::vector<base::MutableByteSpan> spans(memory.begin(), memory.end());
  for (std::size_t i = 0; i < model.weights.size(); ++i) plan.Scatter(i, model.weights[i], spans);
  plan.ClearFills(spans);
  return memory;
}

// Among all ranks each element of a tensor is owned once, and what the owners export is the
// checkpoint; their digests add up to the checkpoint's.
RC_GTEST_PROP(ShardPlanner, ExportsOfAllRanksAreTheCheckpoint, ()) {
  const RandomModel model = MakeRandomModel();
  std::vector<Memory> memories;
  for (const Plan& plan : model.ranks) memories.push_back(Load(model, plan));
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    const TensorSpec& spec = model.ranks[0].tensors()[i];
    std::vector<std::byte> exported(spec.bytes(), std::byte{0x55});
    tensor::Digest digest;
    std::uint64_t owned = 0;
    for (std::size_t r = 0; r < model.ranks.size(); ++r) {
      const Plan& plan = model.ranks[r];
      RC_ASSERT(plan.tensors()[i].name == spec.name);
      RC_ASSERT(plan.tensors()[i].shape == spec.shape);
      const std::vector<base::ByteSpan> views(memories[r].begin(), memories[r].end());
      owned += plan.OwnedBytes(i);
      for (const OwnedPart& part : TakeOwned(plan, i, views)) {
        PutBox(spec, part.box, part.bytes, exported);
      }
      digest += *DigestOwned(plan, i, views);
    }
    RC_ASSERT(owned == spec.bytes());
    RC_ASSERT(exported == model.weights[i]);
    RC_ASSERT(digest == tensor::DigestOf(exported, tensor::DigestUnitBytes(spec.dtype)));
  }
}

// Every byte of a parameter is a byte of a tensor or zero (padding), but for derived ones.
RC_GTEST_PROP(ShardPlanner, LoadingLeavesNothingAsItWas, ()) {
  const RandomModel model = MakeRandomModel();
  for (const Plan& plan : model.ranks) {
    Memory memory = MakeMemory(plan, std::byte{0});
    Memory other = MakeMemory(plan, std::byte{0xFF});
    for (Memory* each : {&memory, &other}) {
      const std::vector<base::MutableByteSpan> spans(each->begin(), each->end());
      for (std::size_t i = 0; i < model.weights.size(); ++i) {
        plan.Scatter(i, model.weights[i], spans);
      }
      plan.ClearFills(spans);
    }
    for (std::size_t i = 0; i < memory.size(); ++i) {
      RC_ASSERT((memory[i] == other[i]) != plan.IsDerived(i));
    }
  }
}

Dtype Bf16(std::string_view) { return Dtype::kBF16; }

TEST(ShardPlanner, KeyHeadsAreRepeatedNextToEachOther) {
  std::vector<std::uint64_t> first_rows;
  std::vector<bool> owners;
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    ShardPlanner planner({rank, 6}, Bf16);
    planner.Columns("kv", {{"k", 3, 4, true, "num_key_value_heads"}}, {5});
    ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(planner).Build());
    EXPECT_EQ(plan.parameters()[0].shape, (std::vector<std::uint64_t>{4, 5}));
    first_rows.push_back(plan.pieces()[0].source.begin[0]);
    owners.push_back(plan.pieces()[0].owner);
  }
  EXPECT_EQ(first_rows, (std::vector<std::uint64_t>{0, 0, 4, 4, 8, 8}));
  EXPECT_EQ(owners, (std::vector<bool>{true, false, true, false, true, false}));
}

// A scale for each block of 4 rows and 2 columns; the last block of a tensor may be short.
TEST(ShardPlanner, BlocksAreDividedAsTheirMatrix) {
  const Blocks scales{.rows = 4, .columns = 2, .dtype = Dtype::kF32};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ShardPlanner planner({rank, 2}, Bf16);
    planner.Columns("qk", {{"q", 4, 4}, {"k", 1, 7, true, "num_key_value_heads"}}, {5}, scales);
    planner.Rows("o", 7, 12, 2, scales);
    planner.Rows("o.channel", 7, 12, 2, {.columns = 0});
    planner.Replicated("a", {7, 5}, scales);
    ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(planner).Build());
    using testing::ElementsAre;
    const auto shape = [&](const char* name) {
      return plan.parameters()[plan.FindParameter(name)].shape;
    };
    EXPECT_EQ(plan.parameters()[0].dtype, Dtype::kF32);
    EXPECT_THAT(shape("qk"), ElementsAre(2 + 2, 3));
    EXPECT_THAT(plan.tensors()[plan.FindTensor("q")].shape, ElementsAre(4, 3));
    EXPECT_THAT(plan.tensors()[plan.FindTensor("k")].shape, ElementsAre(2, 3));
    EXPECT_THAT(plan.PiecesOf(plan.FindTensor("q"))[0].source.begin, ElementsAre(2 * rank, 0));
    EXPECT_THAT(plan.PiecesOf(plan.FindTensor("k"))[0].destination.begin, ElementsAre(2, 0));
    EXPECT_THAT(shape("o"), ElementsAre(2, 3));
    EXPECT_THAT(plan.PiecesOf(plan.FindTensor("o"))[0].source.begin, ElementsAre(0, 3 * rank));
    EXPECT_THAT(shape("o.channel"), ElementsAre(7, 1));
    EXPECT_EQ(plan.PiecesOf(plan.FindTensor("o.channel"))[0].owner, rank == 0);
    EXPECT_THAT(shape("a"), ElementsAre(2, 3));
  }
}

TEST(ShardPlanner, BlocksAreNotCut) {
  const auto plan = [](std::uint64_t rows, std::uint32_t size, const Blocks& blocks) {
    ShardPlanner planner({0, size}, Bf16);
    planner.Columns("gate", {{"gate", rows}}, {8}, blocks);
    return std::move(planner).Build();
  };
  EXPECT_OK(plan(6, 1, {.rows = 4}));
  EXPECT_OK(plan(8, 2, {.rows = 4}));
  EXPECT_ERROR(plan(12, 2, {.rows = 4}), Code::kInvalidArgument,
               "the rows of gate cannot be divided evenly among 2 ranks: each would have 6 of the "
               "matrix, expected a multiple of 4");
}

TEST(ShardPlanner, VocabulariesArePadded) {
  EXPECT_EQ(VocabularyShare(211, 1), 211U);
  EXPECT_EQ(VocabularyShare(211, 2), 128U);
  EXPECT_EQ(VocabularyShare(49152, 3), 16384U);
  ShardPlanner planner({2, 3}, Bf16);  // 86 rows each of 256: 172 to 211, and padding
  planner.Vocabulary("e", 211, 4);
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(planner).Build());
  EXPECT_EQ(plan.pieces()[0].source, (Box{{172, 0}, {211, 4}}));
  ASSERT_EQ(plan.fills().size(), 1U);
  EXPECT_EQ(plan.fills()[0].box, (Box{{39, 0}, {86, 4}}));
}

TEST(ShardPlanner, RanksBeyondASmallVocabularyHoldPaddingOnly) {
  ShardPlanner planner({7, 8}, Bf16);
  planner.Vocabulary("e", 9, 4);
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(planner).Build());
  EXPECT_TRUE(plan.pieces().empty());
  EXPECT_EQ(plan.fills()[0].box, (Box{{0, 0}, {8, 4}}));
}

TEST(ShardPlanner, SaysWhatCannotBeDivided) {
  const auto build = [](std::uint32_t size, std::uint32_t groups, const auto& add) {
    ShardPlanner planner({size - 1, size, groups}, Bf16);
    add(planner);
    return std::move(planner).Build();
  };
  EXPECT_ERROR(build(2, 1, [](auto& p) { p.Rows("down", 4, 77); }), Code::kInvalidArgument,
               "the columns of down (77) cannot be divided evenly among 2 ranks");
  EXPECT_ERROR(build(4, 1, [](auto& p) { p.Columns("up", 6, {2}); }), Code::kInvalidArgument,
               "the rows of up (6) cannot be divided evenly among 4 ranks");
  EXPECT_ERROR(
      build(4, 1, [](auto& p) { p.Columns("k", {{"k", 3, 2, true, "num_key_value_heads"}}, {2}); }),
      Code::kInvalidArgument, "num_key_value_heads (3) and 4 ranks: neither divides the other");
  EXPECT_ERROR(
      build(2, 1, [](auto& p) { p.Columns("k", {{"k", 3, 2, true, "num_key_value_heads"}}, {2}); }),
      Code::kInvalidArgument, "num_key_value_heads (3) cannot be divided evenly among 2 ranks");
  EXPECT_ERROR(build(4, 4, [](auto& p) { p.Experts("e.", 6, 8, 2); }), Code::kInvalidArgument,
               "the number of experts (6)");
  EXPECT_ERROR(build(4, 1, [](auto& p) { p.Experts("e.", 6, 6, 2); }), Code::kInvalidArgument,
               "moe_intermediate_size (6)");
}

}  // namespace
}  // namespace syncline::layout
