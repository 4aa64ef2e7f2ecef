// Products with quantised weights against products with their values.
#include "model/panel_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "model/linear.h"
#include "model/small_quantised.h"

namespace syncline::model {
namespace {

// Matrices with short last blocks, with several panels, and with less than one.
std::vector<quant::Matrix> Matrices() {
  return {{.part_rows = {576, 192, 192}, .columns = 576},
          {.part_rows = {64}, .columns = 128},
          {.part_rows = {1088}, .columns = 1536}};
}

template <typename Body>
void ForEachUnit(const Body& body) {
  std::uint32_t seed = 1;
  for (const auto& scheme : AllSchemes()) {
    for (const quant::Matrix& matrix : Matrices()) {
      SCOPED_TRACE(std::string(scheme->name()) + " " + std::to_string(matrix.rows()));
      if (!scheme->Check(matrix)) continue;
      body(SmallUnit(scheme, matrix, seed += 10));
    }
  }
}

WeightMatrix MatrixOf(const SmallUnit& unit, at::ScalarType activation) {
  return {unit.unit(), unit.slots(), activation};
}

TEST(PanelLinear, GivesTheBitsOfTheProductWithTheValues) {
  ForEachUnit([](const SmallUnit& unit) {
    const WeightMatrix weight = MatrixOf(unit, at::kBFloat16);
    const at::Tensor values = weight.Values();
    ASSERT_EQ(values.sizes(), at::IntArrayRef({weight.outputs(), weight.inputs()}));
    const at::Tensor bias = at::randn({weight.outputs()}).to(at::kBFloat16);
    for (const std::int64_t rows : {1, 3, 32, 70}) {
      const at::Tensor x = at::randn({rows, weight.inputs()}).to(at::kBFloat16);
      if (!HasLinearKernel(x)) continue;
      EXPECT_TRUE(Linear(x, weight, bias).equal(Linear(x, values, bias))) << rows;
      EXPECT_TRUE(Linear(x, weight, {}).equal(Linear(x, values, {}))) << rows;
      EXPECT_TRUE(LinearToFloat(x, weight).equal(LinearToFloat(x, values))) << rows;
    }
  });
}

TEST(PanelLinear, OtherActivationsUseTheSameValues) {
  ForEachUnit([](const SmallUnit& unit) {
    for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
      const WeightMatrix weight = MatrixOf(unit, type);
      EXPECT_EQ(weight.options().dtype(), type);
      const at::Tensor values = weight.Values();
      EXPECT_EQ(values.scalar_type(), type);
      const at::Tensor x = at::randn({5, weight.inputs()}).to(type);
      const at::Tensor bias = at::randn({weight.outputs()}).to(type);
      const at::Tensor exact = at::linear(x.to(at::kDouble), values.to(at::kDouble));
      // Results are rounded to the type, so errors are relative to them, a bias included.
      const auto bound_of = [&](const at::Tensor& result) {
        return (type == at::kHalf ? 2e-3 : 1e-5) * result.abs().max().item<double>();
      };
      const double bound = bound_of(exact);
      const at::Tensor plain = Linear(x, weight, {});
      EXPECT_EQ(plain.scalar_type(), type);
      EXPECT_LE((plain - exact).abs().max().item<double>(), bound);
      EXPECT_LE((LinearToFloat(x, weight) - exact).abs().max().item<double>(), bound);
      const at::Tensor biased = exact + bias;
      EXPECT_LE((Linear(x, weight, bias) - biased).abs().max().item<double>(), bound_of(biased));
    }
  });
}

TEST(PanelLinear, ValuesAreThoseOfTheScheme) {
  ForEachUnit([](const SmallUnit& unit) {
    const quant::Unit& own = unit.unit();
    const WeightMatrix weight = MatrixOf(unit, at::kBFloat16);
    std::vector<std::uint16_t> expected(own.matrix.rows() * own.matrix.columns);
    own.scheme->Dequantise(own.matrix, unit.slots(), quant::Layout::kRuntime, 0, 0,
                           own.matrix.rows(), expected.data());
    const at::Tensor values = weight.Values();
    EXPECT_EQ(std::memcmp(values.const_data_ptr(), expected.data(), expected.size() * 2), 0);
    const std::int64_t step = weight.RowStep();
    if (step < weight.outputs()) {
      EXPECT_TRUE(weight.Values(step, weight.outputs())
                      .equal(values.narrow(0, step, weight.outputs() - step)));
    }
  });
}

TEST(PanelLinear, EachExpertHasItsOwnWeights) {
  for (const auto& scheme : AllSchemes()) {
    const SmallUnit unit(scheme, {.experts = 3, .part_rows = {128, 128}, .columns = 256}, 5);
    const WeightMatrix all = MatrixOf(unit, at::kBFloat16);
    ASSERT_EQ(all.matrices(), 3);
    const at::Tensor x = at::randn({4, 256}).to(at::kBFloat16);
    for (std::int64_t expert = 0; expert < 3; ++expert) {
      std::vector<std::uint16_t> values(256 * 256UL);
      unit.unit().scheme->Dequantise(unit.unit().matrix, unit.slots(), quant::Layout::kRuntime,
                                     static_cast<std::uint64_t>(expert), 0, 256, values.data());
      const at::Tensor own = all.Select(expert).Values();
      EXPECT_EQ(std::memcmp(own.const_data_ptr(), values.data(), values.size() * 2), 0);
      EXPECT_TRUE(Linear(x, all.Select(expert), {}).equal(PanelLinear(x, all.Select(expert), {})));
    }
    EXPECT_FALSE(all.Select(0).Values().equal(all.Select(1).Values()));
  }
}

TEST(WeightMatrix, OfATensorIsAView) {
  at::Tensor values = at::randn({2, 3, 5});
  const WeightMatrix matrix(values);
  EXPECT_EQ(matrix.outputs(), 3);
  EXPECT_EQ(matrix.inputs(), 5);
  EXPECT_EQ(matrix.matrices(), 2);
  EXPECT_FALSE(matrix.quantised());
  EXPECT_FALSE(WeightMatrix().defined());
  EXPECT_EQ(matrix.Select(1).Values().const_data_ptr(), values.select(0, 1).const_data_ptr());
}

}  // namespace
}  // namespace syncline::model
