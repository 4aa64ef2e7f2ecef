#include "quant/wna16_marlin.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "quant/cell_transpose.h"
#include "quant/marlin_tiles.h"
#include "quant/random_unit.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using tensor::Dtype;

// The permutation of 1024 values, in the steps of the kernels' authors.
std::vector<std::size_t> MarlinPermutation() {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < 32; ++i) {
    std::vector<std::size_t> eight;
    for (const std::size_t block : {0, 1}) {
      for (const std::size_t row :
           {2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4) + 8, 2 * (i % 4) + 9}) {
        eight.push_back(16 * row + i / 4 + 8 * block);
      }
    }
    for (std::size_t j = 0; j < 4; ++j) {
      for (const std::size_t value : eight) all.push_back(value + 256 * j);
    }
  }
  std::vector<std::size_t> interleaved;
  for (std::size_t i = 0; i < all.size(); i += 8) {
    for (const std::size_t j : {0, 2, 4, 6, 1, 3, 5, 7}) interleaved.push_back(all[i + j]);
  }
  return interleaved;
}

TEST(Wna16MarlinTest, PermutationOfTheReference) {
  std::vector<std::size_t> permutation = MarlinPermutation();
  permutation.resize(10);
  EXPECT_EQ(permutation, (std::vector<std::size_t>{0, 128, 8, 136, 16, 144, 24, 152, 256, 384}));
}

std::uint32_t Word(const std::vector<std::byte>& bytes, std::size_t number) {
  return base::Load<std::uint32_t>(bytes.data() + 4 * number);
}
std::uint16_t Half(const std::vector<std::byte>& bytes, std::size_t number) {
  return base::Load<std::uint16_t>(bytes.data() + 2 * number);
}

// The packed weight of one matrix in runtime layout, from that in load layout.
std::vector<std::byte> RepackPlainly(const std::vector<std::byte>& load, std::size_t rows,
                                     std::size_t columns) {
  // q[K, N]
  std::vector<unsigned> q(rows * columns);
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t k = 0; k < columns; ++k) {
      q[k * rows + n] = Word(load, n * columns / 8 + k / 8) >> (4 * (k % 8)) & 15U;
    }
  }
  // [K / 16, N * 16] of tiles of 16 by 16
  std::vector<unsigned> tiled(q.size());
  for (std::size_t k = 0; k < columns; ++k) {
    for (std::size_t n = 0; n < rows; ++n) {
      tiled[k / 16 * rows * 16 + n / 16 * 256 + k % 16 * 16 + n % 16] = q[k * rows + n];
    }
  }
  const std::vector<std::size_t> permutation = MarlinPermutation();
  std::vector<std::byte> packed(q.size() / 2);
  for (std::size_t word = 0; word < q.size() / 8; ++word) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t at = word * 8 + i;
      bits |= tiled[at / 1024 * 1024 + permutation[at % 1024]] << (4 * i);
    }
    base::Store(packed.data() + 4 * word, bits);
  }
  return packed;
}

std::vector<std::byte> PermuteScalesPlainly(const std::vector<std::byte>& load, std::size_t rows,
                                            std::size_t groups) {
  std::vector<std::uint16_t> s(rows * groups);  // [groups, rows]
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t g = 0; g < groups; ++g) s[g * rows + n] = Half(load, n * groups + g);
  }
  std::vector<std::uint16_t> out(s.size());
  if (groups > 1) {
    for (std::size_t chunk = 0; chunk < s.size(); chunk += 64) {
      for (std::size_t i = 0; i < 8; ++i) {
        for (std::size_t j = 0; j < 8; ++j) out[chunk + 8 * i + j] = s[chunk + i + 8 * j];
      }
    }
  } else {
    constexpr std::size_t kFrom[] = {0, 1, 8, 9, 16, 17, 24, 25};
    for (std::size_t chunk = 0; chunk < s.size(); chunk += 32) {
      for (std::size_t i = 0; i < 4; ++i) {
        for (std::size_t t = 0; t < 8; ++t) out[chunk + 8 * i + t] = s[chunk + 2 * i + kFrom[t]];
      }
    }
  }
  const auto bytes = std::as_bytes(std::span(out));
  return {bytes.begin(), bytes.end()};
}

RC_GTEST_PROP(Wna16MarlinTest, RuntimeLayoutIsMarlins, ()) {
  const std::uint64_t group = Draw(0, 3) * 32;
  const Matrix matrix = {.part_rows = {Draw(1, 4) * 64},
                         .columns = group == 0 ? Draw(1, 20) * 16 : Draw(1, 6) * group};
  const auto scheme = Wna16Marlin(group);
  const std::vector<Slot> slots = scheme->Slots(matrix);
  const SlotMemory load = RandomLoad(slots);
  SlotMemory runtime = load;
  base::ThreadPool pool(2);
  scheme->Process(matrix, runtime.Views(), pool);
  RC_ASSERT(runtime.bytes[0] == RepackPlainly(load.bytes[0], matrix.rows(), matrix.columns));
  const std::uint64_t groups = slots[1].load.shape[1];
  RC_ASSERT(groups == (group == 0 ? 1 : matrix.columns / group));
  RC_ASSERT(runtime.bytes[1] == PermuteScalesPlainly(load.bytes[1], matrix.rows(), groups));
}

RC_GTEST_PROP(Wna16MarlinTest, ValuesOfTheLoadLayout, (bool half)) {
  const Matrix matrix = {
      .part_rows = {64}, .columns = 96, .activation = half ? Dtype::kF16 : Dtype::kBF16};
  const auto scheme = Wna16Marlin(48);
  const SlotMemory load = RandomLoad(scheme->Slots(matrix));
  std::vector<std::uint16_t> values(64 * 96);
  scheme->Dequantise(matrix, load.ConstViews(), Layout::kLoad, 0, 0, 64, values.data());
  for (std::size_t n = 0; n < 64; ++n) {
    for (std::size_t k = 0; k < 96; ++k) {
      const std::uint16_t bits = Half(load.bytes[1], n * 2 + k / 48);
      const float scale = half ? tensor::FromF16(bits) : tensor::FromBf16(bits);
      const auto nibble =
          static_cast<int>(Word(load.bytes[0], n * 12 + k / 8) >> (4 * (k % 8)) & 15U);
      RC_ASSERT(values[n * 96 + k] == tensor::ToBf16(static_cast<float>(nibble - 8) * scale));
    }
  }
}

TEST(Wna16MarlinTest, SlotsOfExperts) {
  const Matrix matrix = {.experts = 3, .part_rows = {96, 96}, .columns = 64};
  using Shape = std::vector<std::uint64_t>;
  const std::vector<Slot> slots = Wna16Marlin(32)->Slots(matrix);
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0].name, "weight_packed");
  EXPECT_EQ(slots[0].load.dtype, Dtype::kI32);
  EXPECT_EQ(slots[0].load.shape, (Shape{3, 192, 8}));
  EXPECT_EQ(slots[0].runtime.shape, (Shape{3, 4, 384}));
  EXPECT_EQ(slots[0].runtime_bytes, slots[0].load.bytes());
  EXPECT_EQ(slots[1].name, "weight_scale");
  EXPECT_EQ(slots[1].load.dtype, Dtype::kBF16);
  EXPECT_EQ(slots[1].load.shape, (Shape{3, 192, 2}));
  EXPECT_EQ(slots[1].runtime.shape, (Shape{3, 2, 192}));
  EXPECT_EQ(Wna16Marlin(0)->Slots(matrix)[1].load.shape, (Shape{3, 192, 1}));
}

TEST(Wna16MarlinTest, MatricesThatDoNotFit) {
  const auto message = [](std::uint64_t group, const Matrix& matrix) {
    const base::Status checked = Wna16Marlin(group)->Check(matrix);
    return checked ? std::string() : checked.error().message;
  };
  const Matrix good = {.part_rows = {64}, .columns = 64};
  EXPECT_EQ(message(32, good), "");
  EXPECT_EQ(message(0, good), "");
  EXPECT_EQ(message(32, {.part_rows = {40, 40}, .columns = 64}),
            "rows of 4-bit integers are 80, expected a multiple of 64");
  EXPECT_EQ(message(0, {.part_rows = {64}, .columns = 72}),
            "columns of 4-bit integers are 72, expected a multiple of 16");
  EXPECT_EQ(message(48, good),
            "columns of 4-bit integers in groups are 64, expected a multiple of 48");
  EXPECT_EQ(message(4, good),
            "columns of a group of 4-bit integers are 4, expected a multiple of 8");
  EXPECT_EQ(message(32, {.part_rows = {64}, .columns = 64, .activation = Dtype::kF32}),
            "scales of 4-bit integers are F32, expected BF16 or F16");
  EXPECT_NE(message(0, {.part_rows = {std::uint64_t{1} << 24}, .columns = std::uint64_t{1} << 24})
                .find("expected fewer than 4294967296 tiles"),
            std::string::npos);
}

// The kernels of every vector width do what they do for one tile at a time.
TEST(MarlinTilesTest, EveryTarget) {
  constexpr std::size_t kTiles = 11;
  constexpr std::size_t kRowStride = kTiles * kTileRowBytes + 3;
  constexpr std::size_t kTileStride = kTileBytes + 5;
  std::mt19937_64 random(7);
  std::vector<std::byte> rows(kBandRows * kRowStride);
  for (std::byte& byte : rows) byte = static_cast<std::byte>(random());
  std::vector<std::byte> row_of_tiles;  // in load layout, gaps left out
  for (std::size_t n = 0; n < kBandRows; ++n) {
    const auto row = std::span(rows).subspan(n * kRowStride, kTiles * kTileRowBytes);
    row_of_tiles.insert(row_of_tiles.end(), row.begin(), row.end());
  }
  const std::vector<std::byte> expected = RepackPlainly(row_of_tiles, kBandRows, kTiles * 16);
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    std::vector<std::byte> tiled(kTiles * kTileStride);
    TileBand(rows.data(), kRowStride, kTiles, tiled.data(), kTileStride);
    for (std::size_t t = 0; t < kTiles; ++t) {
      EXPECT_TRUE(std::ranges::equal(std::span(tiled).subspan(t * kTileStride, kTileBytes),
                                     std::span(expected).subspan(t * kTileBytes, kTileBytes)))
          << t;
    }
    std::vector<std::byte> back = rows;
    for (std::size_t n = 0; n < kBandRows; ++n) {
      std::fill_n(back.begin() + static_cast<std::ptrdiff_t>(n * kRowStride),
                  kTiles * kTileRowBytes, std::byte{0});
    }
    UntileBand(tiled.data(), kTileStride, kTiles, back.data(), kRowStride);
    EXPECT_EQ(back, rows);
    std::vector<std::uint16_t> values(146);
    // Groups of 38, of the first of which 6 have gone.
    const std::vector<float> scales = {1.5F, -0.001F, INFINITY, 1e-38F};
    DequantiseNibbles(rows.data() + 1, values.size(), {scales.data(), 38, 6}, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto byte = std::to_integer<int>(rows[1 + i / 2]);
      const auto nibble = static_cast<float>(i % 2 == 0 ? byte % 16 : byte / 16);
      EXPECT_EQ(values[i], tensor::ToBf16((nibble - 8) * scales[(i + 6) / 38])) << i;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(CellTransposeTest, AnyShape) {
  base::ThreadPool pool(3);
  // Squares have cycles of two only; the others also one that is cut into chains.
  for (const auto& [rows, columns] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {1, 1}, {1, 9}, {9, 1}, {2, 3}, {40, 40}, {64, 257}, {896, 512}, {77, 1201}}) {
    CellTranspose transpose(rows, columns, sizeof(std::uint64_t));
    std::vector<std::uint64_t> cells(rows * columns);
    std::iota(cells.begin(), cells.end(), std::uint64_t{0});
    std::vector<std::uint64_t> expected(cells.size());
    for (std::uint64_t r = 0; r < rows; ++r) {
      for (std::uint64_t c = 0; c < columns; ++c) expected[c * rows + r] = r * columns + c;
    }
    transpose.Run(reinterpret_cast<std::byte*>(cells.data()), pool);
    EXPECT_EQ(cells, expected) << rows << " by " << columns;
  }
}

}  // namespace
}  // namespace syncline::quant
