#include "model/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/cpu_rotary.h"
#include "model/each_target.h"

namespace syncline::model {
namespace {

// A rounding to the type is off by this share of the result at most.
double RoundingOf(at::ScalarType type) { return std::ldexp(1.0, type == at::kBFloat16 ? -8 : -24); }

constexpr double kFloatRounding = 0x1p-24;

at::Tensor Random(at::IntArrayRef shape, at::ScalarType type) { return at::randn(shape).to(type); }

at::Tensor Wide(const at::Tensor& t) { return t.to(at::kDouble); }

// |found - exact| <= bound everywhere.
void ExpectWithin(const at::Tensor& found, const at::Tensor& exact, const at::Tensor& bound) {
  const at::Tensor error = (Wide(found) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << found.sizes() << ", worst by " << (error - bound).max().item<double>();
}

class OpsTest : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, OpsTest, testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& type) { return toString(type.param); });

// One rounding, and in fp32 a sum of n squares, a root, a quotient and two products.
TEST_P(OpsTest, NormIsWithinRoundingOfTheExactOne) {
  ForEachTarget([] {
    for (const std::int64_t width : {1, 2, 3, 8, 15, 16, 17, 33, 100, 576, 1003}) {
      for (const std::int64_t rows : {1, 3, 40}) {
        const at::Tensor x = Random({rows, width}, at::kFloat) * 3;
        const at::Tensor weight = Random({width}, GetParam());
        const at::Tensor before = x.clone();
        const at::Tensor found = AddAndNorm(x, {}, weight, 1e-5);
        EXPECT_TRUE(x.equal(before));
        EXPECT_EQ(found.scalar_type(), GetParam());
        const at::Tensor exact =
            Wide(weight) * Wide(x) / (Wide(x).square().mean({-1}, true) + 1e-5).sqrt();
        const double share =
            1.01 * RoundingOf(GetParam()) + (static_cast<double>(width) + 8) * kFloatRounding;
        ExpectWithin(found, exact, exact.abs() * share);
      }
    }
  });
}

// The residual stream has ATen's very bits; the norm is that of what was stored.
TEST_P(OpsTest, AddsToTheStreamAsAtenDoes) {
  ForEachTarget([] {
    for (const std::int64_t width : {1, 7, 64, 577}) {
      const at::Tensor x = Random({5, width}, at::kFloat);
      const at::Tensor add = Random({5, width}, GetParam()) / 7;
      const at::Tensor weight = Random({width}, GetParam());
      const at::Tensor sum = x + add;
      const at::Tensor found = AddAndNorm(x, add, weight, 1e-6);
      EXPECT_TRUE(x.equal(sum));
      EXPECT_TRUE(found.equal(AddAndNorm(sum, {}, weight, 1e-6)));
    }
  });
}

TEST_P(OpsTest, SiluIsWithinRoundingOfTheExactOne) {
  ForEachTarget([] {
    for (const std::int64_t width : {1, 5, 16, 31, 100, 1536}) {
      const at::Tensor gate_up = Random({3, 2 * width}, GetParam()) * 4;
      const at::Tensor found = SiluAndMultiply(gate_up);
      const at::Tensor gate = Wide(gate_up.narrow(1, 0, width));
      const at::Tensor exact = gate * at::sigmoid(gate) * Wide(gate_up.narrow(1, width, width));
      // The exponential of a rounded-off argument of this size, and a sum and quotient.
      const double share = 2.01 * RoundingOf(GetParam()) + 16 * kFloatRounding;
      ExpectWithin(found, exact, exact.abs() * share);
    }
  });
}

TEST_P(OpsTest, SiluOfLargeNumbers) {
  ForEachTarget([] {
    const float infinity = std::numeric_limits<float>::infinity();
    const at::Tensor gate = at::tensor({-1e30F, -200.F, -0.F, 0.F, 200.F, 1e30F, infinity});
    const at::Tensor gate_up =
        at::cat({gate, at::tensor({1.F, 1.F, 1.F, 1.F, 1.F, 1.F, 1.F})}).to(GetParam());
    const at::Tensor found = SiluAndMultiply(gate_up.unsqueeze(0)).to(at::kFloat).squeeze(0);
    const at::Tensor rounded = gate.to(GetParam()).to(at::kFloat);
    for (const std::int64_t i : {0, 1, 2, 3}) EXPECT_EQ(found[i].item<float>(), 0) << i;
    for (const std::int64_t i : {4, 5, 6}) {
      EXPECT_EQ(found[i].item<float>(), rounded[i].item<float>()) << i;
    }
  });
}

TEST_P(OpsTest, KernelsAgreeWithTheReference) {
  const double rounding = RoundingOf(GetParam());
  const at::Tensor x = Random({9, 576}, at::kFloat);
  const at::Tensor add = Random({9, 576}, GetParam());
  const at::Tensor weight = Random({576}, GetParam());
  const at::Tensor stream = x.clone();
  const at::Tensor expected = reference::AddAndNorm(stream, add, weight, 1e-5);
  const at::Tensor found = AddAndNorm(x, add, weight, 1e-5);
  EXPECT_EQ(expected.scalar_type(), GetParam());
  EXPECT_TRUE(x.equal(stream));
  // Either may round to the other side.
  ExpectWithin(found, Wide(expected), Wide(expected).abs() * (2.1 * rounding + 1e-6));

  const at::Tensor gate_up = Random({9, 640}, GetParam());
  const at::Tensor silu = reference::SiluAndMultiply(gate_up);
  ExpectWithin(SiluAndMultiply(gate_up), Wide(silu), Wide(silu).abs() * (4.1 * rounding + 1e-6));
}

// One rounding, and in fp32 two products and their sum.
TEST_P(OpsTest, RotationIsWithinRoundingOfTheExactOne) {
  ForEachTarget([] {
    for (const std::int64_t size : {2, 6, 16, 18, 64, 80, 128, 256}) {
      const std::int64_t heads = 3;
      at::Tensor x = Random({1, heads, size}, GetParam());
      const at::Tensor angles = at::arange(size / 2, at::kFloat) * 1.7 + 0.3;
      const at::Tensor cosine = angles.cos() * 1.1;
      const at::Tensor sine = angles.sin() * 1.1;
      const at::Tensor low = Wide(x).narrow(-1, 0, size / 2);
      const at::Tensor high = Wide(x).narrow(-1, size / 2, size / 2);
      const at::Tensor c = Wide(cosine);
      const at::Tensor s = Wide(sine);
      const at::Tensor exact = at::cat({low * c - high * s, high * c + low * s}, -1);
      const at::Tensor scale =
          at::cat({(low * c).abs() + (high * s).abs(), (high * c).abs() + (low * s).abs()}, -1);
      const at::Tensor bound =
          exact.abs() * (1.01 * RoundingOf(GetParam())) + scale * (4 * kFloatRounding);
      ExpectWithin(Rotate(x, cosine.unsqueeze(0), sine.unsqueeze(0)), exact, bound);

      const auto rotate = [&](auto* data) {
        RotateHeads(data, static_cast<std::size_t>(heads), static_cast<std::size_t>(size),
                    cosine.const_data_ptr<float>(), sine.const_data_ptr<float>());
      };
      if (GetParam() == at::kFloat) {
        rotate(static_cast<float*>(x.mutable_data_ptr()));
      } else {
        rotate(static_cast<Bf16*>(x.mutable_data_ptr()));
      }
      ExpectWithin(x, exact, bound);
    }
  });
}

// Numbers beside every bf16 round as ATen rounds them; NaN stays NaN. A rotation by "angles" of
// which the sines are 0 multiplies by the cosines and rounds.
// As a product of complex numbers; the other form is the same after the pairs are sorted.
TEST_P(OpsTest, RotationOfNeighboursIsAProductOfComplexNumbers) {
  for (const std::int64_t size : {2, 8, 18, 64}) {
    const at::Tensor x = Random({5, 3, size}, GetParam());
    const at::Tensor angle = at::randn({5, size / 2}) * 3;
    const at::Tensor found = RotateNeighbours(x, angle.cos(), angle.sin());
    EXPECT_EQ(found.scalar_type(), GetParam());
    const at::Tensor turn = at::complex(Wide(angle.cos()), Wide(angle.sin())).unsqueeze(1);
    const at::Tensor pairs = at::view_as_complex(Wide(x).unflatten(2, {size / 2, 2}).contiguous());
    const at::Tensor exact = at::view_as_real(pairs * turn).flatten(2);
    const at::Tensor magnitude = pairs.abs().repeat_interleave(2, 2);
    ExpectWithin(found, exact,
                 exact.abs() * (1.01 * RoundingOf(GetParam())) + magnitude * (4 * kFloatRounding));
    const at::Tensor sorted = at::cat({x.slice(2, 0, size, 2), x.slice(2, 1, size, 2)}, 2);
    const at::Tensor halves = Rotate(sorted, angle.cos(), angle.sin());
    EXPECT_TRUE(at::cat({found.slice(2, 0, size, 2), found.slice(2, 1, size, 2)}, 2).equal(halves));
  }
}

TEST_P(OpsTest, HeadsAreNormedEachOnItsOwnInPlace) {
  for (const std::int64_t count : {1, 3}) {
    const at::Tensor x = Random({7, count + 2, 24}, GetParam());
    const at::Tensor weight = Random({24}, GetParam());
    const at::Tensor found = x.clone();
    NormHeads(found.narrow(1, 1, count), weight, 1e-5);
    EXPECT_TRUE(found.select(1, 0).equal(x.select(1, 0)));
    EXPECT_TRUE(found.select(1, count + 1).equal(x.select(1, count + 1)));
    const at::Tensor heads = x.narrow(1, 1, count);
    const at::Tensor exact =
        Wide(weight) * Wide(heads) / (Wide(heads).square().mean({-1}, true) + 1e-5).sqrt();
    const double share = 1.01 * RoundingOf(GetParam()) + 32 * kFloatRounding;
    ExpectWithin(found.narrow(1, 1, count), exact, exact.abs() * share);
  }
}

TEST(Bf16RoundingTest, IsToNearestEven) {
  const at::Tensor bits = at::arange(std::int64_t{0}, std::int64_t{1} << 16).unsqueeze(1) * 65536 +
                          at::tensor({0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}).unsqueeze(0);
  const at::Tensor values = bits.to(at::kInt).view(at::kFloat).flatten().contiguous();
  const at::Tensor expected = values.to(at::kBFloat16);
  const std::int64_t count = values.size(0);
  const at::Tensor sine = at::zeros({count});
  ForEachTarget([&] {
    at::Tensor x = at::cat({at::ones({count}), at::zeros({count})}).to(at::kBFloat16);
    RotateHeads(static_cast<Bf16*>(x.mutable_data_ptr()), 1, static_cast<std::size_t>(2 * count),
                values.const_data_ptr<float>(), sine.const_data_ptr<float>());
    const at::Tensor found = x.narrow(0, 0, count);
    const at::Tensor same =
        found.eq(expected).logical_or(found.isnan().logical_and(expected.isnan()));
    EXPECT_TRUE(same.all().item<bool>());
  });
}

}  // namespace
}  // namespace syncline::model
