#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "layout/plan.h"
#include "layout/random_plan.h"

namespace syncline::layout {
namespace {

using base::Code;
using tensor::Dtype;
using Shape = std::vector<std::uint64_t>;

// Breaks the parts of a good plan and says what the message must name.
using Break = std::string (*)(PlanParts&, std::size_t piece);

void CheckRefused(Break damage) {
  PlanParts parts = MakeRandomPlan().parts;
  RC_PRE(!parts.pieces.empty());
  const auto piece = Draw(0, parts.pieces.size());
  const std::string named = damage(parts, piece);
  const auto plan = BuildParts(parts);
  RC_ASSERT_FALSE(plan.has_value());
  RC_LOG() << plan.error().message;
  RC_ASSERT(plan.error().code == Code::kInternal);
  RC_ASSERT(plan.error().message.find(named + " ") != std::string::npos ||
            plan.error().message.find(named + ":") != std::string::npos);
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAMissingPiece, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    const std::string parameter = parts.parameters[parts.pieces[piece].parameter].name;
    parts.pieces.erase(parts.pieces.begin() + static_cast<std::ptrdiff_t>(piece));
    return parameter;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAPieceThatIsThereTwice, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    parts.pieces.push_back(Piece(parts.pieces[piece]));
    return parts.parameters[parts.pieces[piece].parameter].name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAnElementThatIsOwnedTwice, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    Piece copy = parts.pieces[piece];
    RC_PRE(copy.owner);
    copy.parameter = parts.parameters.size();
    parts.parameters.push_back({.name = "copy",
                                .dtype = parts.tensors[copy.tensor].dtype,
                                .shape = parts.tensors[copy.tensor].shape});
    copy.source = copy.destination = WholeBox(parts.parameters.back().shape);
    parts.pieces.push_back(copy);
    return parts.tensors[copy.tensor].name;
  });
}

// By one byte or element along a random dimension, one way or the other.
void Shift(Box& box, const TensorSpec& spec) {
  RC_PRE(!box.begin.empty());
  const auto d = Draw(0, box.begin.size());
  const std::uint64_t by = tensor::Bits(spec.dtype) < 8 ? 4 : 1;
  const bool down = Draw(0, 2) == 1;
  RC_PRE(!down || box.begin[d] >= by);
  for (std::uint64_t* edge : {&box.begin[d], &box.end[d]}) *edge = down ? *edge - by : *edge + by;
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAShiftedDestination, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    const TensorSpec& parameter = parts.parameters[parts.pieces[piece].parameter];
    Shift(parts.pieces[piece].destination, parameter);
    return parameter.name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAShiftedSourceOfATensorHeldWhole, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    const auto plan = BuildParts(parts);
    const std::size_t tensor = parts.pieces[piece].tensor;
    RC_PRE(parts.pieces[piece].owner && plan->HoldsWhole(tensor));
    Shift(parts.pieces[piece].source, parts.tensors[tensor]);
    return parts.tensors[tensor].name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesBoxesOfDifferentShapes, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    Box& source = parts.pieces[piece].source;
    RC_PRE(!source.begin.empty());
    const auto d = Draw(0, source.begin.size());
    RC_PRE(source.end[d] - source.begin[d] > 1);
    --source.end[d];
    return parts.tensors[parts.pieces[piece].tensor].name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAnEmptyOrInvertedBox, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    Box& source = parts.pieces[piece].source;
    RC_PRE(!source.begin.empty());
    const auto d = Draw(0, source.begin.size());
    source.begin[d] = source.end[d] + Draw(0, 2);
    return parts.tensors[parts.pieces[piece].tensor].name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesABoxOfAnotherRank, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    Box& destination = parts.pieces[piece].destination;
    const std::uint64_t which = Draw(0, 3);
    if (which != 0) destination.begin.push_back(0);
    if (which != 1) destination.end.push_back(1);
    return parts.parameters[parts.pieces[piece].parameter].name;
  });
}

RC_GTEST_PROP(PlanBuilderTest, RefusesAnotherDtype, ()) {
  CheckRefused([](PlanParts& parts, std::size_t piece) {
    TensorSpec& parameter = parts.parameters[parts.pieces[piece].parameter];
    parameter.dtype = parameter.dtype == Dtype::kU32 ? Dtype::kF32 : Dtype::kU32;
    return parameter.name;
  });
}

base::Status Built(PlanBuilder builder) {
  const auto plan = std::move(builder).Build();
  if (plan) return {};
  return std::unexpected(plan.error());
}

PlanBuilder OneTensor() {
  PlanBuilder builder;
  builder.AddWhole("a", "p", Dtype::kBF16, {2, 2});
  return builder;
}

TEST(PlanBuilderTest, MessagesSayWhatIsWrong) {
  PlanBuilder builder;
  const std::size_t tensor = builder.AddTensor({"a", Dtype::kBF16, {4, 4}});
  const std::size_t parameter = builder.AddParameter({"p", Dtype::kBF16, {4, 4}});
  builder.AddPiece({tensor, parameter, {{0, 0}, {2, 4}}, {{0, 0}, {2, 4}}});
  EXPECT_ERROR(Built(builder), Code::kInternal,
               "parameter p BF16 [4, 4]: 8 of 16 elements are in no piece, the first at [2, 0]");
  PlanBuilder twice = builder;
  twice.AddPiece({tensor, parameter, {{2, 0}, {4, 4}}, {{1, 0}, {3, 4}}});
  EXPECT_ERROR(Built(twice), Code::kInternal,
               "parameter p BF16 [4, 4]: [0:2, 0:4] of tensor a and [1:3, 0:4] of tensor a "
               "overlap");
  twice = builder;
  twice.AddPiece({tensor, parameter, {{2, 0}, {4, 4}}, {{3, 0}, {5, 4}}});
  EXPECT_ERROR(Built(twice), Code::kInternal,
               "parameter p BF16 [4, 4]: piece [3:5, 0:4] is out of bounds");
  twice = builder;
  twice.AddPiece({tensor, parameter, {{1, 0}, {3, 4}}, {{2, 0}, {4, 4}}});
  EXPECT_ERROR(Built(twice), Code::kInternal,
               "tensor a BF16 [4, 4]: the owning pieces [0:2, 0:4] and [1:3, 0:4] overlap");
  twice = builder;
  twice.AddPiece({tensor, parameter, {{2, 0}, {3, 4}}, {{2, 0}, {4, 4}}});
  EXPECT_ERROR(Built(twice), Code::kInternal,
               "tensor a: piece [2:3, 0:4] has another shape than [2:4, 0:4] in parameter p");
  twice = builder;
  twice.AddPiece({tensor, parameter, {{2, 0}, {4, 2}}, {{2, 0}, {3, 4}}});
  EXPECT_ERROR(Built(twice), Code::kInternal,
               "tensor a: piece [2:4, 0:2] has another shape than [2:3, 0:4] in parameter p");
  for (const std::uint64_t begin : {4, 5}) {
    twice = builder;
    twice.AddPiece({tensor, parameter, {{begin, 0}, {4, 4}}, {{begin, 0}, {4, 4}}});
    EXPECT_ERROR(Built(twice), Code::kInternal,
                 fmt::format("tensor a BF16 [4, 4]: piece [{}:4, 0:4] is empty", begin));
  }
  twice = builder;
  twice.AddPiece({tensor, parameter, {{2, 0}, {4, 4}}, {{2, 0}, {4, 4}}});
  EXPECT_OK(Built(twice));
}

TEST(PlanBuilderTest, ShapesOfBoxesDifferOnlyInDimensionsOfOne) {
  const auto from_to = [](Shape from, Shape to) {
    PlanBuilder builder;
    builder.AddPiece({builder.AddTensor({"a", Dtype::kU8, from}),
                      builder.AddParameter({"p", Dtype::kU8, to}), WholeBox(from), WholeBox(to)});
    return Built(builder);
  };
  EXPECT_OK(from_to({2, 3}, {1, 2, 1, 3}));
  EXPECT_OK(from_to({1, 1}, {}));
  EXPECT_ERROR(from_to({2, 3}, {3, 2}), Code::kInternal, "has another shape");
  EXPECT_ERROR(from_to({2, 3}, {6}), Code::kInternal, "has another shape");
}

TEST(PlanBuilderTest, RefusesWhatHasNoPieceOrNoElements) {
  PlanBuilder builder = OneTensor();
  builder.AddTensor({"b", Dtype::kF32, {3}});
  EXPECT_ERROR(Built(builder), Code::kInternal, "tensor b F32 [3] has no piece");
  builder = OneTensor();
  builder.AddParameter({"q", Dtype::kF32, {3}});
  EXPECT_ERROR(Built(builder), Code::kInternal, "parameter q F32 [3]: 3 of 3 elements");
  builder = OneTensor();
  builder.AddWhole("b", "q", Dtype::kF32, {3, 0});
  EXPECT_ERROR(Built(builder), Code::kInternal, "parameter q F32 [3, 0] has no elements");
  builder = OneTensor();
  builder.AddTensor({"b", Dtype::kF32, {1ULL << 40, 1ULL << 40}});
  EXPECT_ERROR(Built(builder), Code::kInternal, "tensor b: shape");
}

TEST(PlanBuilderTest, FillsAbsentTensorsAndDerivedParameters) {
  PlanBuilder builder = OneTensor();
  builder.AddAbsent({"b", Dtype::kF32, {3}});
  const std::size_t derived = builder.AddDerived({"d", Dtype::kF32, {3}});
  const std::size_t padded = builder.AddParameter({"padded", Dtype::kU8, {3, 2}});
  builder.AddPiece({.tensor = builder.AddTensor({"t", Dtype::kU8, {2, 2}}),
                    .parameter = padded,
                    .source = WholeBox(Shape{2, 2}),
                    .destination = {{0, 0}, {2, 2}}});
  PlanBuilder gap = builder;
  EXPECT_ERROR(Built(gap), Code::kInternal, "2 of 6 elements are in no piece");
  PlanBuilder overlap = builder;
  overlap.AddFill({.parameter = padded, .box = {{1, 0}, {3, 2}}});
  EXPECT_ERROR(Built(overlap), Code::kInternal, "padding [1:3, 0:2] overlap");
  PlanBuilder outside = builder;
  outside.AddFill({.parameter = padded, .box = {{2, 0}, {4, 2}}});
  EXPECT_ERROR(Built(outside), Code::kInternal, "out of bounds");
  PlanBuilder nowhere = builder;
  nowhere.AddFill({.parameter = 99, .box = {{2, 0}, {3, 2}}});
  EXPECT_ERROR(Built(nowhere), Code::kInternal, "a fill names parameter 99");
  builder.AddFill({.parameter = padded, .box = {{2, 0}, {3, 2}}});
  PlanBuilder written = builder;
  written.AddFill({.parameter = derived, .box = {{0}, {1}}});
  EXPECT_ERROR(Built(written), Code::kInternal, "is derived and has padding");
  PlanBuilder present = builder;
  present.AddPiece({.tensor = present.AddAbsent({"c", Dtype::kF32, {1}}),
                    .parameter = present.AddParameter({"q", Dtype::kF32, {1}}),
                    .source = {{0}, {1}},
                    .destination = {{0}, {1}}});
  EXPECT_ERROR(Built(present), Code::kInternal, "declared absent");
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(builder).Build());
  EXPECT_TRUE(plan.IsDerived(derived));
  EXPECT_FALSE(plan.IsDerived(padded));
  EXPECT_FALSE(plan.HoldsWhole(plan.FindTensor("b")));
  EXPECT_EQ(plan.OwnedBytes(plan.FindTensor("b")), 0U);
  std::vector<std::vector<std::byte>> memory;
  for (const TensorSpec& parameter : plan.parameters()) {
    memory.emplace_back(parameter.bytes(), std::byte{7});
  }
  const std::vector<base::MutableByteSpan> spans(memory.begin(), memory.end());
  plan.ClearFills(spans);
  EXPECT_EQ(memory[derived], std::vector<std::byte>(12, std::byte{7}));
  std::vector<std::byte> expected(6, std::byte{7});
  expected[4] = expected[5] = std::byte{0};
  EXPECT_EQ(memory[padded], expected);
}

TEST(PlanBuilderTest, RefusesIndicesThatAreNotThere) {
  const Box whole = WholeBox(Shape{2, 2});
  PlanBuilder builder = OneTensor();
  builder.AddPiece({1, 0, whole, whole});
  EXPECT_ERROR(Built(builder), Code::kInternal, "a piece names tensor 1 of 1");
  builder = OneTensor();
  builder.AddPiece({0, 1, whole, whole});
  EXPECT_ERROR(Built(builder), Code::kInternal, "and parameter 1 of 1");
}

TEST(PlanBuilderTest, RefusesNamesThatMeanTwoThings) {
  PlanBuilder builder = OneTensor();
  builder.AddWhole("a", "q", Dtype::kBF16, {1});
  EXPECT_ERROR(Built(builder), Code::kInternal, "tensor a is there twice");
  builder = OneTensor();
  builder.AddWhole("b", "p", Dtype::kBF16, {1});
  EXPECT_ERROR(Built(builder), Code::kInternal, "parameter p is there twice");
  builder = OneTensor();
  builder.Skip("*");
  EXPECT_ERROR(Built(builder), Code::kInternal, "tensor a is needed and skipped");
  builder = OneTensor();
  builder.Alias("b", "c");
  EXPECT_ERROR(Built(builder), Code::kInternal, "alias b is for tensor c, which is not there");
  builder = OneTensor();
  builder.Alias("a", "a");
  EXPECT_ERROR(Built(builder), Code::kInternal, "alias a of tensor a is also a tensor");
  builder = OneTensor();
  builder.Alias("b", "a");
  EXPECT_OK(Built(builder));
  builder.Alias("b", "a");
  EXPECT_ERROR(Built(builder), Code::kInternal, "alias b is there twice");
  builder = OneTensor();
  builder.Alias("b", "a");
  builder.Skip("b");
  EXPECT_ERROR(Built(builder), Code::kInternal, "alias b of tensor a is also a tensor or skipped");
}

TEST(PlanBuilderTest, CutsSmallElementsAtWholeBytesOnly) {
  const auto cut_at = [](Dtype dtype, Shape shape, std::size_t d, std::uint64_t place) {
    PlanBuilder builder;
    const std::size_t tensor = builder.AddTensor({"a", dtype, shape});
    const std::size_t parameter = builder.AddParameter({"p", dtype, shape});
    Box head = WholeBox(shape);
    Box tail = head;
    head.end[d] = tail.begin[d] = place;
    builder.AddPiece({tensor, parameter, head, head});
    builder.AddPiece({tensor, parameter, tail, tail});
    return Built(builder);
  };
  EXPECT_OK(cut_at(Dtype::kF4, {2, 4, 1}, 1, 2));
  EXPECT_OK(cut_at(Dtype::kF4, {3, 4, 1}, 0, 1));
  EXPECT_ERROR(cut_at(Dtype::kF4, {2, 4, 1}, 1, 3), Code::kInternal, "not cut at whole bytes");
  EXPECT_ERROR(cut_at(Dtype::kF6E2M3, {8}, 0, 2), Code::kInternal, "not cut at whole bytes");
  EXPECT_OK(cut_at(Dtype::kF6E2M3, {8}, 0, 4));
  EXPECT_ERROR(cut_at(Dtype::kF4, {4, 3}, 0, 2), Code::kInternal, "rows do not end on a byte");
}

TEST(PlanBuilderTest, RefusesStacksThatDoNotFit) {
  const auto stack = [](const std::vector<TensorSpec>& tensors) {
    PlanBuilder builder;
    builder.AddStacked(tensors, "p");
    return Built(builder);
  };
  EXPECT_OK(stack({{"a", Dtype::kU8, {2, 3}}, {"b", Dtype::kU8, {1, 3}}}));
  EXPECT_OK(stack({{"a", Dtype::kU8, {}}}));
  EXPECT_ERROR(stack({}), Code::kInternal, "parameter p");
  EXPECT_ERROR(stack({{"a", Dtype::kU8, {}}, {"b", Dtype::kU8, {}}}), Code::kInternal, "overlap");
  EXPECT_ERROR(stack({{"a", Dtype::kU8, {2, 3}}, {"b", Dtype::kU8, {1, 2}}}), Code::kInternal,
               "parameter p U8 [3, 3]: 1 of 9 elements are in no piece, the first at [2, 2]");
  EXPECT_ERROR(stack({{"a", Dtype::kU8, {2, 3}}, {"b", Dtype::kU8, {1, 4}}}), Code::kInternal,
               "out of bounds");
  EXPECT_ERROR(stack({{"a", Dtype::kU8, {2, 3}}, {"b", Dtype::kI8, {1, 3}}}), Code::kInternal,
               "differ in dtype");
  EXPECT_ERROR(stack({{"a", Dtype::kU8, {2, 3}}, {"b", Dtype::kU8, {3}}}), Code::kInternal,
               "another number of dimensions");
}

// A mixture of experts: 80 layers of 384 experts, whose gate, up and down are stacked in two
// parameters a layer.
TEST(PlanBuilderTest, LargePlan) {
  constexpr std::uint64_t kExperts = 384;
  constexpr std::uint64_t kWide = 256;
  constexpr std::uint64_t kHidden = 1024;
  PlanBuilder builder;
  const auto add = [&](const std::string& name, std::size_t parameter, const Shape& shape,
                       std::uint64_t expert, std::uint64_t row) {
    builder.AddPiece({.tensor = builder.AddTensor({name, Dtype::kBF16, shape}),
                      .parameter = parameter,
                      .source = WholeBox(shape),
                      .destination = {{expert, row, 0}, {expert + 1, row + shape[0], shape[1]}}});
  };
  for (int layer = 0; layer < 80; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    const std::size_t wide = builder.AddParameter(
        {prefix + "gate_up_proj", Dtype::kBF16, {kExperts, 2 * kWide, kHidden}});
    const std::size_t down =
        builder.AddParameter({prefix + "down_proj", Dtype::kBF16, {kExperts, kHidden, kWide}});
    for (std::uint64_t e = 0; e < kExperts; ++e) {
      const std::string expert = fmt::format("{}{}.", prefix, e);
      add(expert + "up_proj.weight", wide, {kWide, kHidden}, e, kWide);
      add(expert + "gate_proj.weight", wide, {kWide, kHidden}, e, 0);
      add(expert + "down_proj.weight", down, {kHidden, kWide}, e, 0);
    }
    for (int i = 0; i < 12; ++i) {
      const std::string name = fmt::format("model.layers.{}.other{}.weight", layer, i);
      builder.AddWhole(name, name, Dtype::kBF16, {kHidden});
    }
  }
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(builder).Build());
  EXPECT_EQ(plan.tensors().size(), 93'120U);
  const auto pieces =
      plan.PiecesOf(plan.FindTensor("model.layers.79.mlp.experts.383.up_proj.weight"));
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].parameter, plan.FindParameter("model.layers.79.mlp.experts.gate_up_proj"));
  EXPECT_EQ(pieces[0].destination, (Box{{383, kWide, 0}, {384, 2 * kWide, kHidden}}));
}

}  // namespace
}  // namespace syncline::layout
