#include "quant/fp8_block.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "quant/fp8_rows.h"
#include "quant/random_unit.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using tensor::FromBf16;
using tensor::FromE4M3;
using tensor::ToBf16;
using tensor::ToE4M3;

constexpr std::uint8_t kNan = 0x7F;

bool IsNan(std::uint8_t q) { return (q & 0x7FU) == kNan; }

// One block as the header describes it, element by element; returns the new scale.
float RequantisePlainly(std::vector<std::uint8_t>& block, float scale) {
  float amax = 1e-4F;
  std::vector<float> x;
  for (const std::uint8_t q : block) {
    x.push_back(FromBf16(ToBf16(FromE4M3(q) * scale)));
    if (!std::isnan(x.back())) amax = std::max(amax, std::fabs(x.back()));
  }
  // Rounded up to a power of two.
  int exponent = 0;
  const float fraction = std::frexp(amax / 448.0F, &exponent);
  const float sf = std::isinf(amax)   ? std::ldexp(1.0F, 127)
                   : fraction == 0.5F ? std::ldexp(1.0F, exponent - 1)
                                      : std::ldexp(1.0F, exponent);
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (!std::isnan(x[i])) {
      block[i] = ToE4M3(x[i] * (1.0F / sf));
    } else {
      block[i] = static_cast<std::uint8_t>(kNan | (block[i] & 0x80U));
    }
  }
  return sf;
}

bool IsPowerOfTwo(float scale) {
  int exponent = 0;
  return std::isnormal(scale) && std::frexp(scale, &exponent) == 0.5F;
}

std::uint8_t At(const std::vector<std::byte>& bytes, std::uint64_t at) {
  return std::to_integer<std::uint8_t>(bytes.at(at));
}

// Both layouts written out index by index.
RC_GTEST_PROP(Fp8BlockUe8m0Test, ProcessIsAsDescribed, ()) {
  Matrix matrix;
  matrix.part_rows = {Draw(1, 200), Draw(1, 200)};
  matrix.columns = Draw(1, 700);
  const auto scheme = Fp8BlockUe8m0();
  const std::vector<Slot> slots = scheme->Slots(matrix);
  const SlotMemory load = RandomLoad(slots);
  SlotMemory runtime = load;
  base::ThreadPool pool(2);
  scheme->Process(matrix, runtime.Views(), pool);

  const std::uint64_t rows = matrix.rows();
  const std::uint64_t blocks = (matrix.columns + 127) / 128;
  const std::uint64_t aligned = (rows + 3) / 4 * 4;
  std::vector<std::byte> packed((blocks + 3) / 4 * aligned * 4);
  RC_ASSERT(slots[1].runtime_bytes == packed.size());
  std::uint64_t scale_row = 0;
  for (std::uint64_t part = 0; part < 2; ++part) {
    const std::uint64_t begin = part == 0 ? 0 : matrix.part_rows[0];
    for (std::uint64_t top = 0; top < matrix.part_rows[part]; top += 128, ++scale_row) {
      const std::uint64_t bottom = std::min(top + 128, matrix.part_rows[part]);
      for (std::uint64_t b = 0; b < blocks; ++b) {
        const std::uint64_t right = std::min((b + 1) * 128, matrix.columns);
        float scale = base::Load<float>(load.bytes[1].data() + (scale_row * blocks + b) * 4);
        std::vector<std::uint8_t> block;
        std::vector<std::uint8_t> found;
        for (std::uint64_t n = begin + top; n < begin + bottom; ++n) {
          for (std::uint64_t k = b * 128; k < right; ++k) {
            block.push_back(At(load.bytes[0], n * matrix.columns + k));
            found.push_back(At(runtime.bytes[0], n * matrix.columns + k));
          }
        }
        if (!(IsPowerOfTwo(scale) && scale > 0)) scale = RequantisePlainly(block, scale);
        RC_ASSERT(found == block);
        for (std::uint64_t n = begin + top; n < begin + bottom; ++n) {
          packed[(b / 4 * aligned + n) * 4 + b % 4] =
              static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
        }
      }
    }
  }
  RC_ASSERT(Cut(slots, Layout::kRuntime, runtime).bytes[1] == packed);
}

TEST(Fp8BlockUe8m0Test, ShapesOfSlots) {
  const Matrix matrix = {.experts = 3, .part_rows = {130, 5}, .columns = 130};
  const std::vector<Slot> slots = Fp8BlockUe8m0()->Slots(matrix);
  ASSERT_EQ(slots.size(), 2U);
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(slots[0].name, "weight");
  EXPECT_EQ(slots[0].load.shape, (Shape{3, 135, 130}));
  EXPECT_EQ(slots[1].name, "weight_scale_inv");
  EXPECT_EQ(slots[1].load.shape, (Shape{3, 3, 2}));
  EXPECT_EQ(slots[1].load.dtype, tensor::Dtype::kF32);
  EXPECT_EQ(slots[1].runtime.shape, (Shape{3, 135, 1}));
  EXPECT_EQ(slots[1].runtime.dtype, tensor::Dtype::kI32);
  EXPECT_EQ(slots[1].runtime_bytes, 3U * 136 * 4);
}

// Process of one row of one block.
struct Row {
  std::vector<std::uint8_t> q;
  float scale;
};
Row Processed(Row row) {
  const Matrix matrix = {.part_rows = {1}, .columns = row.q.size()};
  const auto scheme = Fp8BlockUe8m0();
  SlotMemory memory(scheme->Slots(matrix));
  std::ranges::copy(std::as_bytes(std::span(row.q)), memory.bytes[0].begin());
  base::Store(memory.bytes[1].data(), row.scale);
  base::ThreadPool pool(1);
  scheme->Process(matrix, memory.Views(), pool);
  scheme->Restore(matrix, memory.Views(), pool);
  std::ranges::transform(memory.bytes[0], row.q.begin(),
                         [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return {row.q, base::Load<float>(memory.bytes[1].data())};
}

TEST(Fp8BlockUe8m0Test, PowersOfTwoAreOnlyPacked) {
  std::vector<std::uint8_t> all(128);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(2 * i + 1);
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const Row row = Processed({all, std::ldexp(1.0F, exponent)});
    EXPECT_EQ(row.q, all);
    EXPECT_EQ(row.scale, std::ldexp(1.0F, exponent));
  }
}

TEST(Fp8BlockUe8m0Test, NanStaysAndDoesNotCount) {
  // 448 * 0.75 = 336, and 336 / 448 rounded up is 1.
  const Row row = Processed({{0x7F, 0xFF, ToE4M3(448), ToE4M3(-1)}, 0.75F});
  EXPECT_EQ(row.scale, 1.0F);
  EXPECT_EQ(row.q, (std::vector<std::uint8_t>{0x7F, 0xFF, ToE4M3(336), ToE4M3(-0.75F)}));
  const Row nothing = Processed({{0x7F, 0xFF}, 0.75F});
  EXPECT_EQ(nothing.q, (std::vector<std::uint8_t>{0x7F, 0xFF}));
  EXPECT_EQ(nothing.scale, std::ldexp(1.0F, -22));  // of 1e-4 / 448
}

TEST(Fp8BlockUe8m0Test, ScalesThatMakeNoSense) {
  const std::vector<std::uint8_t> q = {ToE4M3(0), ToE4M3(-0.0F), ToE4M3(2), ToE4M3(-448)};
  const Row zero = Processed({q, 0.0F});
  EXPECT_EQ(zero.q, (std::vector<std::uint8_t>{0, 0x80, 0, 0x80}));
  const Row negative = Processed({q, -0.5F});
  EXPECT_EQ(FromE4M3(negative.q[2]) * negative.scale, -1.0F);
  EXPECT_EQ(FromE4M3(negative.q[3]) * negative.scale, 224.0F);
  const Row infinite = Processed({q, INFINITY});
  EXPECT_TRUE(IsNan(infinite.q[0]) && IsNan(infinite.q[1]));
  EXPECT_EQ(FromE4M3(infinite.q[2]) * infinite.scale, INFINITY);
  EXPECT_EQ(FromE4M3(infinite.q[3]) * infinite.scale, -INFINITY);
  EXPECT_TRUE(std::ranges::all_of(Processed({q, NAN}).q, IsNan));
}

TEST(Fp8RowsTest, AllElementsOnEveryTarget) {
  std::vector<std::uint8_t> q(256 + 77);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<std::uint8_t>(i);
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (const float scale : {1.0F, 0.0123456F, -3.7F, 1e-38F, 2e36F, INFINITY, NAN}) {
      const std::vector<float> scales = {scale, scale * 3, scale / 3};
      std::vector<std::uint16_t> values(q.size());
      DequantiseFp8Row(q.data(), scales.data(), q.size(), values.data());
      for (std::size_t i = 0; i < q.size(); ++i) {
        const float expected = FromE4M3(q[i]) * scales[i / 128];
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(FromBf16(values[i])));
        } else {
          EXPECT_EQ(values[i], ToBf16(expected)) << i << " " << scale;
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Bit for bit, also of what is no number; nothing beside the rows is written.
TEST(Fp8RowsTest, RowsThatShareScalesAreAsOneByOne) {
  constexpr std::uint16_t kUntouched = 0xABCD;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (const float scale : {1.0F, -0.0123F, 1e-38F, 2e36F, 0.0F, -INFINITY, NAN}) {
      for (const std::size_t columns : {1, 31, 128, 256 + 77, 33 * 128 + 40}) {
        const std::size_t stride = columns + 3;
        std::vector<float> scales;
        for (std::size_t i = 0; i < columns; i += kFp8Block) {
          scales.push_back(i / kFp8Block == 32 ? 5.0F : scale * static_cast<float>(i + 1));
        }
        for (const std::size_t rows : {1, 3, 4, 9}) {
          std::vector<std::uint8_t> q(rows * stride);
          for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<std::uint8_t>(i * 101 + 7);
          std::vector<std::uint16_t> values(rows * (stride + 2), kUntouched);
          auto expected = values;
          for (std::size_t row = 0; row < rows; ++row) {
            DequantiseFp8Row(q.data() + row * stride, scales.data(), columns,
                             expected.data() + row * (stride + 2));
          }
          DequantiseFp8Rows(q.data(), rows, stride, scales.data(), columns, values.data(),
                            stride + 2);
          ASSERT_EQ(values, expected) << scale << ", " << rows << " rows of " << columns;
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace
}  // namespace syncline::quant
