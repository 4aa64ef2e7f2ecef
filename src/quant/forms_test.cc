#include "quant/forms.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/result_matchers.h"
#include "quant/fp8_block.h"
#include "quant/random_unit.h"
#include "quant/wna16_marlin.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using base::Code;
using layout::Plan;
using layout::PlanBuilder;
using tensor::Dtype;

constexpr std::uint64_t kRows[] = {200, 128};
constexpr std::uint64_t kColumns = 700;  // 6 blocks

// Two fp8 tensors that are stacked, one of another rank, a 4-bit module, and plain tensors.
struct Model {
  Model() {
    PlanBuilder builder;
    builder.AddStacked({{"m.q.weight", Dtype::kF8E4M3, {kRows[0], kColumns}},
                        {"m.k.weight", Dtype::kF8E4M3, {kRows[1], kColumns}}},
                       "m.qk.weight");
    builder.AddStacked({{"m.q.weight_scale_inv", Dtype::kF32, {2, 6}},
                        {"m.k.weight_scale_inv", Dtype::kF32, {1, 6}}},
                       "m.qk.weight_scale_inv");
    builder.AddWhole("i.weight_packed", "i.weight_packed", Dtype::kI32, {64, 4});
    builder.AddWhole("i.weight_scale", "i.weight_scale", Dtype::kBF16, {64, 1});
    builder.AddWhole("norm.weight", "norm.weight", Dtype::kBF16, {64});
    builder.AddWhole("bias", "bias", Dtype::kF32, {3});
    builder.AddWhole("half", "half", Dtype::kF16, {3});
    builder.AddWhole("lone.weight_scale_inv", "lone.weight_scale_inv", Dtype::kF32, {1, 1});
    builder.AddAbsent({"far.weight", Dtype::kF8E4M3, {5, 9}});
    builder.AddAbsent({"far.weight_scale_inv", Dtype::kF32, {1, 1}});
    plan = std::move(builder).Build().value();
    Matrix stacked = {.part_rows = {kRows[0], kRows[1]}, .columns = kColumns};
    Matrix integers = {.part_rows = {64}, .columns = 32};
    std::vector<Unit> all;
    all.push_back({"m.qk", Fp8BlockUe8m0(), std::move(stacked), {0, 1}});
    all.push_back({"i", Wna16Marlin(0), std::move(integers), {2, 3}});
    units = Units::Create(plan, std::move(all)).value();
    forms = MakeForms(plan, units);
  }
  bool Accepts(const char* name, Dtype dtype, std::vector<std::uint64_t> shape) const {
    return forms->Accepts(plan.FindTensor(name), dtype, shape);
  }
  auto Convert(const char* name, Dtype dtype, std::vector<std::uint64_t> shape,
               base::ByteSpan bytes) const {
    return forms->Convert(plan.FindTensor(name), dtype, shape, bytes);
  }
  Plan plan;
  Units units;
  std::unique_ptr<layout::Forms> forms;
};

TEST(QuantFormsTest, WhatIsAccepted) {
  const Model model;
  EXPECT_TRUE(model.Accepts("norm.weight", Dtype::kF32, {64}));
  EXPECT_TRUE(model.Accepts("norm.weight", Dtype::kF16, {64}));
  EXPECT_TRUE(model.Accepts("bias", Dtype::kBF16, {3}));
  EXPECT_FALSE(model.Accepts("norm.weight", Dtype::kF32, {8, 8}));
  EXPECT_FALSE(model.Accepts("norm.weight", Dtype::kF64, {64}));
  EXPECT_FALSE(model.Accepts("norm.weight", Dtype::kBF16, {64}));  // not another form
  // Tensors of units are not rounded.
  EXPECT_FALSE(model.Accepts("i.weight_scale", Dtype::kF32, {64, 1}));
  EXPECT_FALSE(model.Accepts("m.q.weight_scale_inv", Dtype::kBF16, {2, 6}));
  EXPECT_FALSE(model.Accepts("m.q.weight", Dtype::kBF16, {200, 700}));
  EXPECT_FALSE(model.Accepts("m.q.weight", Dtype::kI32, {200, 2}));
  EXPECT_FALSE(model.Accepts("i.weight_scale", Dtype::kI32, {64, 1}));

  EXPECT_TRUE(model.Accepts("m.q.weight_scale_inv", Dtype::kI32, {200, 2}));
  EXPECT_TRUE(model.Accepts("m.k.weight_scale_inv", Dtype::kI32, {128, 2}));
  EXPECT_TRUE(model.Accepts("far.weight_scale_inv", Dtype::kI32, {5, 1}));
  EXPECT_TRUE(model.Accepts("m.q.weight_scale_inv", Dtype::kF8E8M0, {2, 6}));
  EXPECT_FALSE(model.Accepts("m.q.weight_scale_inv", Dtype::kI32, {128, 2}));
  EXPECT_FALSE(model.Accepts("m.q.weight_scale_inv", Dtype::kI32, {200, 6}));
  EXPECT_FALSE(model.Accepts("m.q.weight_scale_inv", Dtype::kI32, {400}));
  EXPECT_FALSE(model.Accepts("m.q.weight_scale_inv", Dtype::kF8E8M0, {200, 6}));
  EXPECT_FALSE(model.Accepts("lone.weight_scale_inv", Dtype::kI32, {1, 1}));
}

TEST(QuantFormsTest, FloatsAreRounded) {
  const Model model;
  const std::vector<std::uint16_t> from = {0x3C01, 0x7BFF, 0xFC00};  // 1 + 2^-10, 65504, -infinity
  const auto wide = model.Convert("bias", Dtype::kF16, {3}, std::as_bytes(std::span(from)));
  ASSERT_TRUE(wide.has_value());
  EXPECT_EQ(base::Load<float>(wide->data()), 1.0F + 0x1p-10F);
  EXPECT_EQ(base::Load<float>(wide->data() + 4), 65504.0F);
  EXPECT_EQ(base::Load<float>(wide->data() + 8), -INFINITY);
  const std::vector<float> floats = {1.0F + 0x1p-11F, 1.0F + 3 * 0x1p-11F, 1e6F};
  const auto half = model.Convert("half", Dtype::kF32, {3}, std::as_bytes(std::span(floats)));
  ASSERT_TRUE(half.has_value());
  EXPECT_EQ(base::Load<std::uint16_t>(half->data()), 0x3C00);  // a tie, to even
  EXPECT_EQ(base::Load<std::uint16_t>(half->data() + 2), 0x3C02);
  EXPECT_EQ(base::Load<std::uint16_t>(half->data() + 4), 0x7C00);
}

// Packing of scales by hand, and what is read back.
RC_GTEST_PROP(QuantFormsTest, PackedScalesAreUnpacked, ()) {
  const Model model;
  std::vector<float> scales(12);
  std::vector<std::byte> packed(200 * 8);
  for (std::byte& byte : packed) byte = static_cast<std::byte>(Draw(0, 256));  // also the padding
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const auto exponent = Draw(0, 256);
    scales[i] = std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
    for (std::size_t row = i / 6 * 128; row < std::min<std::size_t>(200, (i / 6 + 1) * 128);
         ++row) {
      packed[row * 8 + i % 6] = static_cast<std::byte>(exponent);
    }
  }
  const auto unpacked = model.Convert("m.q.weight_scale_inv", Dtype::kI32, {200, 2}, packed);
  RC_ASSERT(unpacked.has_value());
  RC_ASSERT(std::ranges::equal(*unpacked, std::as_bytes(std::span(scales))));

  const auto row = Draw(0, 200);
  const auto block = Draw(0, 6);
  packed[row * 8 + block] ^= std::byte{4};
  const auto wrong = model.Convert("m.q.weight_scale_inv", Dtype::kI32, {200, 2}, packed);
  RC_ASSERT(!wrong.has_value());
  RC_ASSERT(wrong.error().code == Code::kInvalidArgument);
  const std::uint64_t named = row % 128 == 0 ? row + 1 : row;
  RC_ASSERT(wrong.error().message.starts_with("m.q.weight_scale_inv: row " + std::to_string(named) +
                                              " has the exponent "));
}

TEST(QuantFormsTest, ExponentBytes) {
  const Model model;
  std::vector<std::byte> bytes(12, std::byte{127});
  bytes[1] = std::byte{0};
  bytes[2] = std::byte{254};
  bytes[3] = std::byte{255};
  const auto scales = model.Convert("m.q.weight_scale_inv", Dtype::kF8E8M0, {2, 6}, bytes);
  ASSERT_TRUE(scales.has_value());
  const auto at = [&](std::size_t i) { return base::Load<float>(scales->data() + 4 * i); };
  EXPECT_EQ(at(0), 1.0F);
  EXPECT_EQ(at(1), 0x1p-127F);
  EXPECT_EQ(at(2), 0x1p127F);
  EXPECT_TRUE(std::isnan(at(3)));
}

TEST(QuantFormsTest, WrongBytesAreRefused) {
  const Model model;
  EXPECT_ERROR(model.Convert("bias", Dtype::kF16, {3}, std::vector<std::byte>(5)),
               Code::kInvalidArgument, "bias is F16 [3] in 5 bytes, expected F32 [3]");
  EXPECT_ERROR(
      model.Convert("m.q.weight_scale_inv", Dtype::kI32, {1, 2}, std::vector<std::byte>(8)),
      Code::kInvalidArgument, "expected F32 [2, 6] or a form of it");
}

}  // namespace
}  // namespace syncline::quant
