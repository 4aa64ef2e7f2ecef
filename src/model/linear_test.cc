#include "model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

#include "model/cpu_linear.h"
#include "model/each_target.h"

namespace syncline::model {
namespace {

at::Tensor Random(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
  return at::randn(shape).to(type);
}

const Bf16* Bits(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const Bf16*>(tensor.const_data_ptr()) : nullptr;
}

// One rounding to bf16 is off by 2^-8 of the result at most; a sum of n products in fp32, in any
// order, by n · 2^-24 of the sum of their magnitudes.
void ExpectNearExact(const at::Tensor& found, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias) {
  const at::Tensor none;
  const auto wide = [&](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : none; };
  const auto magnitude = [&](const at::Tensor& t) { return t.defined() ? wide(t).abs() : none; };
  const at::Tensor exact = at::linear(wide(x), wide(weight), wide(bias));
  const at::Tensor scale = at::linear(magnitude(x), magnitude(weight), magnitude(bias));
  const double sum_error = std::ldexp(static_cast<double>(x.size(1)) + 1, -24);
  const at::Tensor bound = exact.abs() * std::ldexp(1.001, -8) + scale * sum_error;
  const at::Tensor error = (wide(found) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << x.size(0) << " rows of " << x.size(1) << " to " << weight.size(0) << ", worst by "
      << (error - bound).max().item<double>();
}

at::Tensor RunKernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor out = Random({x.size(0), weight.size(0)});
  const LinearProblem problem{Bits(x),
                              Bits(weight),
                              Bits(bias),
                              static_cast<std::size_t>(x.size(0)),
                              static_cast<std::size_t>(x.size(1)),
                              static_cast<std::size_t>(weight.size(0))};
  LinearOutputs(problem, 0, LinearUnits(problem), static_cast<Bf16*>(out.mutable_data_ptr()));
  return out;
}

TEST(LinearKernel, EachTargetIsWithinRoundingOfTheExactProduct) {
  ForEachTarget([] {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 13, 64, 65, 131}) {
      for (const std::int64_t inputs : {1, 2, 7, 8, 15, 31, 32, 33, 64, 100, 577}) {
        const std::int64_t outputs = 1 + (rows * 7 + inputs) % 23;
        const at::Tensor x = Random({rows, inputs});
        const at::Tensor weight = Random({outputs, inputs});
        const at::Tensor bias = inputs % 2 == 0 ? Random({outputs}) : at::Tensor();
        ExpectNearExact(RunKernel(x, weight, bias), x, weight, bias);
      }
    }
  });
}

// Sequences must not feel each other: a row has the same bits whatever stands beside it.
TEST(LinearKernel, RowDoesNotDependOnOtherRows) {
  ForEachTarget([] {
    const at::Tensor x = Random({131, 200});
    const at::Tensor weight = Random({37, 200});
    const at::Tensor all = RunKernel(x, weight, {});
    for (std::int64_t row = 0; row < x.size(0); ++row) {
      const at::Tensor alone = RunKernel(x.narrow(0, row, 1).contiguous(), weight, {});
      ASSERT_TRUE(alone.equal(all.narrow(0, row, 1))) << row;
    }
  });
}

TEST(LinearKernel, UnitsCoverTheOutputsOnceAndNothingElse) {
  const at::Tensor x = Random({3, 40});
  for (const std::int64_t outputs : {1, 3, 4, 9, 16}) {
    const at::Tensor weight = Random({outputs, 40});
    const at::Tensor whole = RunKernel(x, weight, {});
    const LinearProblem problem{Bits(x), Bits(weight), nullptr,
                                3,       40,           static_cast<std::size_t>(outputs)};
    std::vector<float> parts(static_cast<std::size_t>(3 * outputs), -1);
    const std::size_t units = LinearUnits(problem);
    for (std::size_t unit = units; unit-- > 0;) {
      const std::vector<float> before = parts;
      LinearOutputs(problem, unit, unit + 1, parts.data());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t output = i % static_cast<std::size_t>(outputs);
        if (output / 4 != unit) {
          EXPECT_EQ(parts[i], before[i]);
        }
      }
    }
    // The form in fp32 has the same values, not rounded.
    const at::Tensor floats = at::from_blob(parts.data(), whole.sizes(), at::kFloat);
    EXPECT_TRUE(floats.to(at::kBFloat16).equal(whole));
    EXPECT_FALSE(floats.equal(whole.to(at::kFloat)));
  }
}

TEST(LinearKernel, InfinityAndNanStayWhatTheyAre) {
  ForEachTarget([] {
    at::Tensor x = Random({2, 64});
    x[0][3] = std::numeric_limits<float>::infinity();
    x[1][60] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor weight = Random({5, 64}).abs() + 1;
    const at::Tensor found = RunKernel(x, weight, {});
    EXPECT_TRUE(found[0].isinf().all().item<bool>());
    EXPECT_TRUE(found[1].isnan().all().item<bool>());
  });
}

RC_GTEST_PROP(Linear, IsWithinRoundingWhateverTheTypeAndLayout, ()) {
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 70);
  const auto inputs = *rc::gen::inRange<std::int64_t>(1, 300);
  const auto outputs = *rc::gen::inRange<std::int64_t>(1, 300);
  const auto type = *rc::gen::element(at::kBFloat16, at::kFloat);
  const bool strided = *rc::gen::arbitrary<bool>();
  at::Tensor x = Random({rows, strided ? 2 * inputs : inputs}, type);
  if (strided) x = x.narrow(1, inputs / 2, inputs);
  const at::Tensor weight = Random({outputs, inputs}, type);
  const at::Tensor bias = *rc::gen::arbitrary<bool>() ? Random({outputs}, type) : at::Tensor();
  const at::Tensor found = Linear(x, weight, bias);
  RC_ASSERT(found.scalar_type() == type);
  ExpectNearExact(found, x, weight, bias);

  std::vector<float> floats(static_cast<std::size_t>(rows * outputs));
  LinearToFloat(x, weight, floats);
  const at::Tensor viewed = at::from_blob(floats.data(), found.sizes(), at::kFloat);
  RC_ASSERT(viewed.to(type).equal(Linear(x, weight, {})));
}

RC_GTEST_PROP(Linear, BatchIsOneProductAfterTheOther, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 9);
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 40);
  const auto inputs = *rc::gen::inRange<std::int64_t>(1, 100);
  const auto outputs = *rc::gen::inRange<std::int64_t>(1, 100);
  const auto type = *rc::gen::element(at::kBFloat16, at::kFloat);
  const at::Tensor x = Random({count, rows, inputs}, type);
  const at::Tensor weight = Random({count, outputs, inputs}, type);
  const at::Tensor found = BatchedLinear(x, weight);
  RC_ASSERT(found.scalar_type() == type);
  for (std::int64_t i = 0; i < count; ++i) ExpectNearExact(found[i], x[i], weight[i], {});
}

// In whatever types the operands are, and however many rows: a sum of products in fp32.
TEST(Linear, ExactOneIsNotRounded) {
  for (const at::ScalarType x_type : {at::kBFloat16, at::kFloat}) {
    for (const at::ScalarType weight_type : {at::kBFloat16, at::kFloat}) {
      for (const std::int64_t rows : {1, 3, 100}) {
        const at::Tensor x = Random({rows, 200}, x_type);
        const at::Tensor weight = Random({30, 200}, weight_type);
        const at::Tensor found = ExactLinear(x, weight);
        EXPECT_EQ(found.scalar_type(), at::kFloat);
        const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
        EXPECT_LT((found.to(at::kDouble) - exact).abs().max().item<double>(), 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace syncline::model
