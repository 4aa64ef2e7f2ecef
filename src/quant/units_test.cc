#include "quant/units.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/result_matchers.h"
#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"

namespace syncline::quant {
namespace {

using base::Code;
using layout::PlanBuilder;
using tensor::Dtype;

// A plain parameter, an fp8 unit of 130 rows, another plain one, and a 4-bit unit.
layout::Plan MakePlan() {
  PlanBuilder builder;
  builder.AddWhole("a", "a", Dtype::kBF16, {7});
  builder.AddWhole("f.weight", "f.weight", Dtype::kF8E4M3, {130, 64});
  builder.AddWhole("f.weight_scale_inv", "f.weight_scale_inv", Dtype::kF32, {2, 1});
  builder.AddWhole("b", "b", Dtype::kF32, {2});
  builder.AddWhole("i.weight_packed", "i.weight_packed", Dtype::kI32, {64, 4});
  builder.AddWhole("i.weight_scale", "i.weight_scale", Dtype::kBF16, {64, 2});
  return std::move(builder).Build().value();
}

Unit Fp8Unit() { return {"f", Fp8BlockUe8m0(), {.part_rows = {130}, .columns = 64}, {1, 2}}; }
Unit Int4Unit() { return {"i", Wna16Marlin(16), {.part_rows = {64}, .columns = 32}, {4, 5}}; }

TEST(UnitsTest, UnitsOfParametersAndTheirSlots) {
  const layout::Plan plan = MakePlan();
  const auto units = Units::Create(plan, {Int4Unit(), Fp8Unit()});
  ASSERT_TRUE(units.has_value()) << units.error().message;
  EXPECT_EQ(units->UnitOf(0), Units::npos);
  EXPECT_EQ(units->UnitOf(1), 1U);
  EXPECT_EQ(units->UnitOf(2), 1U);
  EXPECT_EQ(units->UnitOf(3), Units::npos);
  EXPECT_EQ(units->UnitOf(5), 0U);
  EXPECT_EQ(units->UnitOf(99), Units::npos);
  // Packed scales of 130 rows are padded to 132 words.
  EXPECT_EQ(Units::SlotBytes(plan, *units),
            (std::vector<std::uint64_t>{14, 130 * 64, 132 * 4, 8, 64 * 16, 64 * 4}));
  EXPECT_EQ(Units::SlotBytes(plan, Units()),
            (std::vector<std::uint64_t>{14, 130 * 64, 8, 8, 64 * 16, 64 * 4}));
}

// Short parts have more scales in the load layout than fit the packed ones.
TEST(UnitsTest, SlotsHoldTheLargerLayout) {
  PlanBuilder builder;
  builder.AddWhole("f.weight", "f.weight", Dtype::kF8E4M3, {4, 512});
  builder.AddWhole("f.weight_scale_inv", "f.weight_scale_inv", Dtype::kF32, {4, 4});
  const layout::Plan plan = std::move(builder).Build().value();
  Matrix matrix = {.part_rows = {1, 1, 1, 1}, .columns = 512};
  std::vector<Unit> all;
  all.push_back({"f", Fp8BlockUe8m0(), std::move(matrix), {0, 1}});
  const Units units = Units::Create(plan, std::move(all)).value();
  EXPECT_EQ(Units::SlotBytes(plan, units), (std::vector<std::uint64_t>{4 * 512, 64}));
}

TEST(UnitsTest, UnitsThatAreNotThePlansAreRefused) {
  const layout::Plan plan = MakePlan();
  Unit unit = Fp8Unit();
  unit.parameters = {1};
  EXPECT_ERROR(Units::Create(plan, {unit}), Code::kInternal,
               "f: fp8-block-ue8m0 has 2 parameters, the plan 1");
  unit.parameters = {1, 3};
  EXPECT_ERROR(Units::Create(plan, {unit}), Code::kInternal,
               "b: fp8-block-ue8m0 loads F32 [2, 1], the plan has F32 [2]");
  unit = Fp8Unit();
  unit.module = "g";
  EXPECT_ERROR(Units::Create(plan, {Fp8Unit(), unit}), Code::kInternal,
               "f.weight is in the units f and g");
  unit = Int4Unit();
  unit.matrix.part_rows = {32};
  EXPECT_ERROR(Units::Create(plan, {unit}), Code::kInvalidArgument,
               "i: rows of 4-bit integers are 32, expected a multiple of 64");
}

TEST(UnitsTest, AllAreProcessedAndRestored) {
  const layout::Plan plan = MakePlan();
  const Units units = Units::Create(plan, {Fp8Unit(), Int4Unit()}).value();
  std::vector<std::vector<std::byte>> memory;
  std::uint8_t next = 0;
  for (const std::uint64_t bytes : Units::SlotBytes(plan, units)) {
    memory.emplace_back(bytes);
    for (std::byte& byte : memory.back()) byte = static_cast<std::byte>(next += 37);
  }
  base::Store(memory[2].data(), 0.5F);
  base::Store(memory[2].data() + 4, 4.0F);
  const auto before = memory;
  std::vector<base::MutableByteSpan> parameters(memory.begin(), memory.end());
  const auto slots = units.SlotsOf(0, parameters);
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0].data(), memory[1].data());
  EXPECT_EQ(slots[1].data(), memory[2].data());

  base::ThreadPool pool(2);
  units.ProcessAll(parameters, pool);
  EXPECT_EQ(memory[0], before[0]);
  EXPECT_EQ(memory[1], before[1]);  // powers of two are only packed
  EXPECT_EQ(base::Load<std::uint32_t>(memory[2].data() + 4 * 127), 126U);
  EXPECT_EQ(base::Load<std::uint32_t>(memory[2].data() + 4 * 128), 129U);
  EXPECT_EQ(memory[3], before[3]);
  EXPECT_NE(memory[4], before[4]);
  EXPECT_NE(memory[5], before[5]);
  units.RestoreAll(parameters, pool);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::uint64_t bytes = plan.parameters()[i].bytes();
    EXPECT_TRUE(std::equal(memory[i].begin(),
                           memory[i].begin() + static_cast<std::ptrdiff_t>(bytes),
                           before[i].begin()))
        << i;
  }
}

}  // namespace
}  // namespace syncline::quant
