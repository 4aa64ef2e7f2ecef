#include "layout/intake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/result_matchers.h"
#include "layout/random_model.h"
#include "layout/random_plan.h"
#include "layout/tensor_names.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::Status;
using tensor::Dtype;

using Memory = std::vector<std::vector<std::byte>>;

// A message of one tensor. kNotFound for one that nothing claims.
Status AddOne(Intake& intake, std::string_view name, Dtype dtype, tensor::Shape shape,
              base::ByteSpan bytes) {
  base::ThreadPool pool(1);
  const Arrival arrival{name, dtype, shape, bytes};
  SYNCLINE_ASSIGN(const std::vector<Claim> claims, intake.Find({&arrival, 1}));
  if (claims[0].kind == Claim::Kind::kUnknown) {
    return std::unexpected(intake.WhyUnknown(arrival));
  }
  return intake.Write({&arrival, 1}, claims, pool);
}

// BR-21: however an update is cut and ordered, it ends at the bytes of a cold load, which does not
// go through Intake.
RC_GTEST_PROP(BR21, DivisionAndOrderDoNotMatter, ()) {
  const RandomModel model = MakeRandomModel();
  const Plan& plan = model.ranks[Draw(0, model.ranks.size())];
  Memory expected = MakeMemory(plan, std::byte{0});
  const std::vector<base::MutableByteSpan> cold(expected.begin(), expected.end());
  for (std::size_t i = 0; i < model.weights.size(); ++i) plan.Scatter(i, model.weights[i], cold);

  std::vector<std::size_t> order(model.weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::uint64_t way = Draw(0, 3);
  if (way == 1) std::ranges::reverse(order);
  if (way == 2) std::ranges::shuffle(order, std::mt19937_64(Draw(0, 1 << 30)));
  Memory memory = MakeMemory(plan, std::byte{0xEE});
  const std::vector<base::MutableByteSpan> spans(memory.begin(), memory.end());
  for (const std::size_t derived : {plan.FindParameter("absorbed")}) {
    std::ranges::fill(memory[derived], std::byte{0});
  }
  Intake intake(plan, spans);
  for (std::size_t done = 0; done < order.size(); ++done) {
    // All but the last have come: the one that is missing is named.
    if (done + 1 == order.size()) {
      const Status finished = intake.Finish();
      RC_ASSERT(!finished);
      RC_ASSERT(finished.error().message.find("1 of ") == 0);
      RC_ASSERT(finished.error().message.find(plan.tensors()[order[done]].name) !=
                std::string::npos);
    }
    const TensorSpec& spec = plan.tensors()[order[done]];
    const Status added =
        AddOne(intake, spec.name, spec.dtype, spec.shape, model.weights[order[done]]);
    if (!added) RC_FAIL(added.error().message);
  }
  RC_ASSERT(intake.Finish().has_value());
  RC_ASSERT(memory == expected);
  RC_ASSERT(intake.report().written == order.size());
}

class IntakeTest : public testing::Test {
 protected:
  IntakeTest() {
    PlanBuilder builder;
    builder.AddStacked({{"q", Dtype::kU8, {2, 2}}, {"k", Dtype::kU8, {1, 2}}}, "qk");
    builder.AddWhole("embed", "embed", Dtype::kU8, {3});
    builder.Alias("head", "embed");
    builder.Skip("*.inv_freq");
    plan_ = *std::move(builder).Build();
    memory_ = MakeMemory(plan_, std::byte{9});
    spans_.assign(memory_.begin(), memory_.end());
  }

  Status Add(Intake& intake, std::string_view name, std::vector<std::uint64_t> shape,
             std::uint8_t value, Dtype dtype = Dtype::kU8) {
    std::uint64_t size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    return AddOne(intake, name, dtype, shape, std::vector<std::byte>(size, std::byte{value}));
  }

  Plan plan_;
  Memory memory_;
  std::vector<base::MutableByteSpan> spans_;
};

// Threads share out what is large: in one run, in many, and as a whole parameter.
TEST(IntakeLargeTest, LargeTensorsAreWrittenInParts) {
  constexpr std::uint64_t kRows = 3000;
  constexpr std::uint64_t kColumns = 2000;
  PlanBuilder builder;
  const std::size_t half = builder.AddParameter({"half", Dtype::kU8, {kRows, kColumns}});
  const std::vector<std::uint64_t> shape = {kRows, 2 * kColumns};
  builder.AddPiece({.tensor = builder.AddTensor({"sliced", Dtype::kU8, shape}),
                    .parameter = half,
                    .source = {{0, kColumns}, {kRows, 2 * kColumns}},
                    .destination = WholeBox(std::vector<std::uint64_t>{kRows, kColumns})});
  builder.AddWhole("whole", "whole", Dtype::kU8, {kRows, kColumns});
  ASSERT_OK_AND_ASSIGN(const Plan plan, std::move(builder).Build());
  std::vector<std::byte> bytes(2 * kRows * kColumns);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i % 253);
  const base::ByteSpan left = base::ByteSpan(bytes).first(kRows * kColumns);
  std::vector<std::byte> right;
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>((2 * row + 1) * kColumns);
    right.insert(right.end(), begin, begin + kColumns);
  }
  Memory memory = MakeMemory(plan, std::byte{0});
  const std::vector<base::MutableByteSpan> spans(memory.begin(), memory.end());
  Intake intake(plan, spans);
  EXPECT_OK(AddOne(intake, "sliced", Dtype::kU8, shape, bytes));
  EXPECT_OK(AddOne(intake, "whole", Dtype::kU8, plan.tensors()[1].shape, left));
  EXPECT_TRUE(memory[0] == right);
  EXPECT_TRUE(std::ranges::equal(memory[1], left));

  base::ThreadPool pool(2);
  const std::vector<Arrival> message = {{"half", Dtype::kU8, plan.parameters()[0].shape, left}};
  ASSERT_OK_AND_ASSIGN(const std::vector<Claim> claims, intake.FindParameters(message));
  EXPECT_OK(intake.Write(message, claims, pool));
  EXPECT_TRUE(std::ranges::equal(memory[0], left));
}

// BR-22: a name that nothing claims and a tensor that never came are errors that name them.
TEST_F(IntakeTest, BR22NothingIsSilent) {
  Intake intake(plan_, spans_);
  EXPECT_OK(Add(intake, "q", {2, 2}, 1));
  EXPECT_ERROR(Add(intake, "model.q", {2, 2}, 2), Code::kNotFound, "no tensor model.q");
  EXPECT_ERROR(Add(intake, "qk", {3, 2}, 2), Code::kNotFound, "send q and k");
  EXPECT_ERROR(Add(intake, "k", {2, 2}, 2), Code::kInvalidArgument,
               "shape [2, 2], expected [1, 2]");
  EXPECT_ERROR(Add(intake, "k", {1, 2}, 2, Dtype::kI8), Code::kInvalidArgument, "dtype I8");
  EXPECT_ERROR(AddOne(intake, "k", Dtype::kU8, std::vector<std::uint64_t>{1, 2}, {}),
               Code::kInvalidArgument, "came with 0 bytes, expected 2");
  EXPECT_ERROR(intake.Finish(), Code::kNotFound,
               "2 of 3 tensors have not come: k (a part of qk), embed");
  const Memory expected = {
      {std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}, std::byte{9}, std::byte{9}},
      {std::byte{9}, std::byte{9}, std::byte{9}}};
  EXPECT_EQ(memory_, expected);
  EXPECT_EQ(intake.report().received, 1U);
}

TEST_F(IntakeTest, BR22UnknownNamesAreCountedWhereTheCallerAsks) {
  const std::vector<std::byte> bytes(8, std::byte{1});
  const base::ByteSpan all = bytes;
  const std::vector<std::uint64_t> two = {2};
  const std::vector<std::uint64_t> square = {2, 2};
  const std::vector<Arrival> message = {{"visual.patch", Dtype::kU8, two, all.first(2)},
                                        {"layers.0.inv_freq", Dtype::kU8, two, all.first(2)},
                                        {"q", Dtype::kU8, square, all.first(4)}};
  Intake intake(plan_, spans_);
  ASSERT_OK_AND_ASSIGN(const std::vector<Claim> claims, intake.Find(message));
  EXPECT_EQ(claims[0].kind, Claim::Kind::kUnknown);
  EXPECT_EQ(claims[1].kind, Claim::Kind::kSkipped);
  EXPECT_EQ(claims[2].kind, Claim::Kind::kTensor);
  EXPECT_THAT(intake.Targets(claims), testing::ElementsAre(0));
  base::ThreadPool pool(1);
  EXPECT_OK(intake.Write(message, claims, pool));
  const IntakeReport& report = intake.report();
  EXPECT_EQ(report.received, 3U);
  EXPECT_EQ(report.written, 1U);
  EXPECT_EQ(report.skipped, 1U);
  EXPECT_EQ(report.unknown, 1U);
  EXPECT_EQ(report.bytes, 4U);
  EXPECT_THAT(report.unknowns, testing::ElementsAre("visual.patch"));
}

// One wrong tensor is enough for a message to be refused before anything of it is written.
TEST_F(IntakeTest, AMessageIsCheckedAsAWhole) {
  const std::vector<std::byte> bytes(4, std::byte{1});
  const base::ByteSpan all = bytes;
  const std::vector<std::uint64_t> two = {2};
  const std::vector<std::uint64_t> square = {2, 2};
  const Intake intake(plan_, spans_);
  EXPECT_ERROR(intake.Find(std::vector<Arrival>{{"q", Dtype::kU8, square, all.first(4)},
                                                {"k", Dtype::kU8, two, all.first(2)}}),
               Code::kInvalidArgument, "shape [2], expected [1, 2]");
  EXPECT_ERROR(intake.Find(std::vector<Arrival>{{"q", Dtype::kU8, square, all.first(4)},
                                                {"module.q", Dtype::kU8, square, all.first(4)}}),
               Code::kAlreadyExists, "q and module.q are both tensor q");
}

TEST_F(IntakeTest, ParametersCanBeSentUnderTheEnginesNames) {
  const std::vector<std::byte> bytes(6, std::byte{7});
  const std::vector<std::uint64_t> shape = {3, 2};
  const std::vector<Arrival> message = {{"qk", Dtype::kU8, shape, bytes}};
  Intake intake(plan_, spans_);
  ASSERT_OK_AND_ASSIGN(const std::vector<Claim> claims, intake.FindParameters(message));
  EXPECT_THAT(intake.Targets(claims), testing::ElementsAre(0));
  base::ThreadPool pool(1);
  EXPECT_OK(intake.Write(message, claims, pool));
  EXPECT_EQ(memory_[0], bytes);
  EXPECT_TRUE(intake.Came(0));
  EXPECT_TRUE(intake.Came(1));
  EXPECT_FALSE(intake.Came(2));
  // What comes again, under its own name, replaces that.
  EXPECT_OK(Add(intake, "k", {1, 2}, 77));
  EXPECT_EQ(memory_[0][4], std::byte{77});
  EXPECT_ERROR(intake.FindParameters(std::vector<Arrival>{{"q", Dtype::kU8, shape, bytes}}),
               Code::kNotFound, "no parameter q");
  const std::vector<std::uint64_t> wrong = {2, 3};
  EXPECT_ERROR(intake.FindParameters(std::vector<Arrival>{{"qk", Dtype::kU8, wrong, bytes}}),
               Code::kInvalidArgument, "came as U8 [2, 3], expected U8 [3, 2]");
}

// Sixteen-bit numbers where the plan wants bytes.
class HalvedForms : public Forms {
 public:
  bool Accepts(std::size_t, Dtype dtype, tensor::Shape) const override {
    return dtype == Dtype::kU16;
  }
  base::Result<std::vector<std::byte>> Convert(std::size_t tensor, Dtype, tensor::Shape,
                                               base::ByteSpan bytes) const override {
    std::vector<std::byte> low;
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      if (bytes[i + 1] != std::byte{0}) {
        return base::Fail(Code::kInvalidArgument, "tensor " + std::to_string(tensor) + ": large");
      }
      low.push_back(bytes[i]);
    }
    return low;
  }
};

TEST_F(IntakeTest, OtherFormsAreConverted) {
  const HalvedForms forms;
  Intake intake(plan_, spans_, &forms);
  const std::vector<std::byte> numbers = {std::byte{3}, std::byte{0}, std::byte{4}, std::byte{0}};
  const std::vector<std::uint64_t> shape = {1, 2};
  EXPECT_OK(AddOne(intake, "k", Dtype::kU16, shape, numbers));
  EXPECT_EQ(memory_[0][4], std::byte{3});
  EXPECT_EQ(memory_[0][5], std::byte{4});
  EXPECT_EQ(intake.report().converted, 1U);
  EXPECT_ERROR(AddOne(intake, "k", Dtype::kU16, shape, std::vector<std::byte>(4, std::byte{1})),
               Code::kInvalidArgument, "large");
  EXPECT_ERROR(AddOne(intake, "k", Dtype::kI8, shape, std::vector<std::byte>(2)),
               Code::kInvalidArgument, "dtype I8");
}

TEST_F(IntakeTest, BR22WrappersAreTakenOffEachName) {
  EXPECT_EQ(WithoutWrappers("module.model.layers.0._fsdp_wrapped_module.mlp.weight"),
            "model.layers.0.mlp.weight");
  EXPECT_EQ(WithoutWrappers("_orig_mod.module.a"), "a");
  EXPECT_EQ(WithoutWrappers("submodule.a.module"), "submodule.a.module");
  EXPECT_EQ(WithoutWrappers(""), "");
  Intake intake(plan_, spans_);
  EXPECT_OK(Add(intake, "module.q", {2, 2}, 1));
  EXPECT_OK(Add(intake, "k", {1, 2}, 2));
  EXPECT_OK(Add(intake, "_orig_mod.embed", {3}, 3));
  EXPECT_OK(intake.Finish());
  EXPECT_ERROR(Add(intake, "q", {2, 2}, 4), Code::kAlreadyExists,
               "module.q and q are both tensor q");
  EXPECT_EQ(memory_[0][0], std::byte{1});
  EXPECT_OK(Add(intake, "module.q", {2, 2}, 5));  // sent again
  EXPECT_EQ(memory_[0][0], std::byte{5});
  EXPECT_EQ(intake.report().written, 3U);
}

TEST_F(IntakeTest, TiedTensorsMustBeEqual) {
  Intake intake(plan_, spans_);
  EXPECT_OK(Add(intake, "head", {3}, 4));
  EXPECT_EQ(memory_[1][0], std::byte{4});
  EXPECT_OK(Add(intake, "embed", {3}, 4));
  EXPECT_ERROR(Add(intake, "embed", {3}, 5), Code::kChecksumMismatch, "ties it to head");
  EXPECT_EQ(memory_[1][0], std::byte{4});
}

}  // namespace
}  // namespace syncline::layout
