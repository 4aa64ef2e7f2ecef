#include "checker/fp8_values.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "checker/test_runner.h"
#include "quant/fp8_block.h"
#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using quant::Matrix;
using tensor::Dtype;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float ValueOf(Dtype dtype, std::size_t bits) {
  const auto byte = static_cast<std::uint8_t>(bits);
  return dtype == Dtype::kF8E4M3 ? tensor::FromE4M3(byte) : tensor::FromE5M2(byte);
}

float RoundToBf16(float value) { return tensor::FromBf16(tensor::ToBf16(value)); }

// Block-wise fp8 in E5M2, which no checkpoint has: one scale, of one matrix of one block. Enough to
// see that the tolerance is that of the element's own type.
class OneBlockOfE5M2 final : public quant::Scheme {
 public:
  std::string_view name() const override { return "fp8-block-e5m2"; }
  base::Status Check(const Matrix& /*matrix*/) const override { return {}; }
  std::vector<quant::Slot> Slots(const Matrix& matrix) const override {
    const layout::TensorSpec weight = {.dtype = Dtype::kF8E5M2,
                                       .shape = {matrix.rows(), matrix.columns}};
    const layout::TensorSpec scale = {.dtype = Dtype::kF32, .shape = {1, 1}};
    return {{.name = "weight", .load = weight, .runtime = weight, .runtime_bytes = weight.bytes()},
            {.name = "weight_scale_inv", .load = scale, .runtime = scale, .runtime_bytes = 4}};
  }
  bool Repacks() const override { return false; }
  bool Exact() const override { return true; }
  void Process(const Matrix& /*matrix*/, quant::MutableSlotViews /*slots*/,
               base::ThreadPool& /*pool*/) const override {}
  void Restore(const Matrix& /*matrix*/, quant::MutableSlotViews /*slots*/,
               base::ThreadPool& /*pool*/) const override {}
  std::uint64_t RowStep() const override { return 3; }
  void Dequantise(const Matrix& matrix, quant::SlotViews slots, quant::Layout /*layout*/,
                  std::uint64_t /*expert*/, std::uint64_t first, std::uint64_t last,
                  std::uint16_t* bf16) const override {
    for (std::uint64_t i = first * matrix.columns; i < last * matrix.columns; ++i) {
      const auto bits = std::to_integer<std::uint8_t>(slots[0][i]);
      *bf16++ = tensor::ToBf16(tensor::FromE5M2(bits) * base::Load<float>(slots[1].data()));
    }
  }
};

void SetScales(Bytes& scales, float scale) {
  for (std::size_t at = 0; at < scales.size(); at += 4) base::Store(&scales[at], scale);
}

void Process(TestRunner& runner) { runner.units().ProcessAll(runner.slots(), runner.pool()); }
void Restore(TestRunner& runner) { runner.units().RestoreAll(runner.slots(), runner.pool()); }

// The distance of an element to the next larger one (of the largest: to the one below) is what Ulp
// says, by all values of the type in order.
TEST(Fp8ValuesTest, UlpIsTheSpacingOfValues) {
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    std::vector<float> magnitudes;
    for (std::size_t bits = 0; bits < 128; ++bits) {
      if (std::isfinite(ValueOf(dtype, bits))) magnitudes.push_back(ValueOf(dtype, bits));
    }
    std::ranges::sort(magnitudes);
    for (std::size_t bits = 0; bits < 256; ++bits) {
      const float ulp = tensor::Ulp(dtype, static_cast<std::uint8_t>(bits));
      const float magnitude = std::fabs(ValueOf(dtype, bits));
      const auto next = std::ranges::upper_bound(magnitudes, magnitude);
      if (!std::isfinite(magnitude)) {
        EXPECT_TRUE(std::isnan(ulp)) << bits;
      } else if (next != magnitudes.end()) {
        EXPECT_EQ(ulp, *next - magnitude) << bits;
      } else {
        EXPECT_EQ(ulp, magnitude - magnitudes[magnitudes.size() - 2]) << bits;
      }
    }
  }
}

// Every element against every other, with scales that differ: expected q is the row, actual q the
// column.
void CompareAllPairs(std::shared_ptr<const quant::Scheme> scheme, Dtype dtype, float old_scale,
                     float new_scale) {
  const std::uint64_t side = dtype == Dtype::kF8E4M3 ? 256 : 128;  // E5M2: the positive ones
  TestRunner runner;
  runner.AddUnit("m", std::move(scheme), {.part_rows = {side}, .columns = side});
  runner.Build();
  for (std::size_t i = 0; i < side * side; ++i) {
    runner["m.weight"][i] = static_cast<std::byte>(i / side);
  }
  SetScales(runner["m.weight_scale_inv"], old_scale);
  Process(runner);
  ASSERT_OK(runner.checker().Snapshot());
  Restore(runner);
  for (std::size_t i = 0; i < side * side; ++i) {
    runner["m.weight"][i] = static_cast<std::byte>(i % side);
  }
  SetScales(runner["m.weight_scale_inv"], new_scale);
  Process(runner);

  ErrorSums sums;
  for (std::size_t i = 0; i < side * side; ++i) {
    const float old_value = RoundToBf16(ValueOf(dtype, i / side) * old_scale);
    const float new_value = RoundToBf16(ValueOf(dtype, i % side) * new_scale);
    const float difference = std::fabs(new_value - old_value);
    if (old_value == new_value) continue;
    const float tolerance = tensor::Ulp(dtype, static_cast<std::uint8_t>(i / side)) * old_scale +
                            tensor::Ulp(dtype, static_cast<std::uint8_t>(i % side)) * new_scale;
    sums.Add(difference, std::isnan(difference) || std::isnan(tolerance) || difference > tolerance);
  }
  ASSERT_GT(sums.exceeding, side * side / 2);
  ASSERT_LT(sums.exceeding, sums.unequal);

  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner.Compare({.allow_quant_error = true}));
  ASSERT_EQ(report.different.size(), 1U);
  EXPECT_EQ(report.different[0].name, "m.weight");
  EXPECT_EQ(report.different[0].exceeding, sums.exceeding);
  EXPECT_TRUE(std::isnan(report.different[0].max_abs_error));
}

TEST(Fp8ValuesTest, ToleranceOfEveryPairOfElements) {
  CompareAllPairs(quant::Fp8Block(), Dtype::kF8E4M3, 0.37F, 0.41F);
  CompareAllPairs(quant::Fp8Block(), Dtype::kF8E4M3, 3e-5F, 3e-5F);
  CompareAllPairs(quant::Fp8BlockUe8m0(), Dtype::kF8E4M3, 0.5F, 0.25F);
  CompareAllPairs(std::make_shared<OneBlockOfE5M2>(), Dtype::kF8E5M2, 0.37F, 0.41F);
}

// A runner with one fp8 matrix [rows, columns], quantised from the same random weights with scales
// that are `margin` times as large as they need to be.
struct Quantised {
  TestRunner runner;

  explicit Quantised(std::uint64_t rows = 192, std::uint64_t columns = 256) {
    runner.AddUnit("m", quant::Fp8Block(), {.part_rows = {rows}, .columns = columns});
    runner.AddWhole("norm.weight", Dtype::kBF16, {8});
    runner.Build();
  }

  void Load(float margin) {
    const std::vector<std::uint64_t> shape =
        runner.plan().parameters()[runner.plan().FindParameter("m.weight")].shape;
    std::mt19937 random(3);
    std::normal_distribution<float> weights(0, 0.02F);
    const float scale = 0.1F / 448 * margin;
    for (std::byte& bits : runner["m.weight"]) {
      bits =
          static_cast<std::byte>(tensor::ToE4M3(std::clamp(weights(random), -0.1F, 0.1F) / scale));
    }
    SetScales(runner["m.weight_scale_inv"], scale);
  }
};

TEST(Fp8ValuesTest, TwoQuantisationsOfOneWeightAreTolerated) {
  Quantised quantised;
  quantised.Load(1);
  ASSERT_OK(quantised.runner.checker().Snapshot());
  quantised.Load(1.001F);
  ASSERT_OK_AND_ASSIGN(const CompareReport strict, quantised.runner.Compare());
  ASSERT_EQ(strict.different.size(), 1U);
  EXPECT_EQ(strict.different[0].exceeding, 0U);
  EXPECT_GT(strict.different[0].mean_abs_error, 0);
  EXPECT_TRUE(strict.tolerated.empty());
  ASSERT_OK_AND_ASSIGN(const CompareReport report,
                       quantised.runner.Compare({.allow_quant_error = true}));
  EXPECT_TRUE(report.different.empty());
  EXPECT_EQ(report.Message(), "");
  ASSERT_EQ(report.tolerated.size(), 1U);
  EXPECT_EQ(report.tolerated[0].name, "m.weight");
}

TEST(Fp8ValuesTest, WhatIsMoreThanRoundingIsNot) {
  Quantised quantised;
  TestRunner& runner = quantised.runner;
  quantised.Load(1);
  ASSERT_OK(runner.checker().Snapshot());
  const auto exceeding = [&]() -> std::uint64_t {
    const auto report = runner.Compare({.allow_quant_error = true});
    EXPECT_OK(report);
    return report && report->different.size() == 1 ? report->different[0].exceeding : 0;
  };
  EXPECT_EQ(exceeding(), 0U);
  // Another power of two.
  runner["m.weight"][0] = std::byte{0x50};
  EXPECT_EQ(exceeding(), 1U);
  ASSERT_OK_AND_ASSIGN(const CompareReport one, runner.Compare());
  EXPECT_EQ(one.different[0].mean_abs_error, one.different[0].max_abs_error / (192 * 256));
  runner["m.weight"][0] = std::byte{0x7f};
  EXPECT_EQ(exceeding(), 1U);
  quantised.Load(1);
  // One scale of four: 64 rows of 128, all but those of zero.
  base::Store(&runner["m.weight_scale_inv"][8], 0.1F);
  EXPECT_GT(exceeding(), 64U * 128 * 9 / 10);
  EXPECT_LE(exceeding(), 64U * 128);
  quantised.Load(1);
  // Not for tensors without quantisation, however small the difference.
  runner["norm.weight"][3] = std::byte{1};
  ASSERT_OK_AND_ASSIGN(const CompareReport report, runner.Compare({.allow_quant_error = true}));
  ASSERT_EQ(report.different.size(), 1U);
  EXPECT_EQ(report.different[0].name, "norm.weight");
}

// Equal bytes are equal values only where no NaN comes of them.
TEST(Fp8ValuesTest, NanOfEqualBytes) {
  Quantised quantised;
  TestRunner& runner = quantised.runner;
  quantised.Load(1);
  const auto exceeding_unchanged = [&]() -> std::uint64_t {
    EXPECT_OK(runner.checker().Snapshot());
    const auto report = runner.Compare({.allow_quant_error = true});
    EXPECT_OK(report);
    return report && report->different.size() == 1 ? report->different[0].exceeding : 0;
  };
  EXPECT_EQ(exceeding_unchanged(), 0U);
  runner["m.weight"][77] = std::byte{0xff};
  EXPECT_EQ(exceeding_unchanged(), 1U);
  quantised.Load(1);
  base::Store(&runner["m.weight_scale_inv"][0], kNan);
  EXPECT_EQ(exceeding_unchanged(), 128U * 128);
  // Infinity times zero; the others are infinite on both sides.
  base::Store(&runner["m.weight_scale_inv"][0], kInfinity);
  std::ranges::fill(runner["m.weight"], std::byte{0x38});
  EXPECT_EQ(exceeding_unchanged(), 0U);
  runner["m.weight"][5] = std::byte{0};
  EXPECT_EQ(exceeding_unchanged(), 1U);
}

// Scales of powers of two have the same values, packed or not.
TEST(Fp8ValuesTest, PackedAndUnpackedScalesHaveTheSameHash) {
  std::vector<std::map<std::string, std::string>> hashes;
  for (const auto& scheme : {quant::Fp8Block(), quant::Fp8BlockUe8m0()}) {
    TestRunner runner;
    runner.AddUnit("m", scheme, {.experts = 2, .part_rows = {130, 70}, .columns = 640});
    runner.Build();
    std::mt19937 random(5);
    for (std::byte& bits : runner["m.weight"]) bits = static_cast<std::byte>(random() % 0x7f);
    Bytes& scales = runner["m.weight_scale_inv"];
    const std::uint64_t count = 2 * 3 * 5;
    for (std::size_t i = 0; i < count; ++i) {
      base::Store(&scales[4 * i], std::ldexp(1.0F, -static_cast<int>(random() % 20)));
    }
    Process(runner);
    hashes.push_back(runner.Hashes());
    hashes.push_back(runner.Hashes({.hash = CheckHash::kSha256}));
    EXPECT_EQ(hashes.back().size(), 1U);
  }
  EXPECT_EQ(hashes[0], hashes[2]);
  EXPECT_EQ(hashes[1], hashes[3]);
  EXPECT_NE(hashes[0], hashes[1]);
}

struct RandomUnit {
  std::shared_ptr<const quant::Scheme> scheme;
  Matrix matrix;
};

RandomUnit DrawUnit(std::mt19937_64& random) {
  Matrix matrix = {.experts = random() % 4, .columns = 1 + random() % 300};
  for (std::size_t part = 1 + random() % 3; part > 0; --part) {
    matrix.part_rows.push_back(1 + random() % 200);
  }
  return {.scheme = random() % 2 == 0 ? quant::Fp8Block() : quant::Fp8BlockUe8m0(),
          .matrix = std::move(matrix)};
}

void Fill(TestRunner& runner, std::mt19937_64& random) {
  for (std::byte& bits : runner["m.weight"]) bits = static_cast<std::byte>(random() % 0x7f);
  Bytes& scales = runner["m.weight_scale_inv"];
  for (std::size_t at = 0; at < scales.size(); at += 4) {
    base::Store(&scales[at], std::ldexp(1.0F, static_cast<int>(random() % 30) - 20));
  }
  Process(runner);
}

// However an entry is cut: the pieces follow one another, begin at whole words, and have the values
// of the matrix in order; scales are found for every row of every part.
RC_GTEST_PROP(Fp8ValuesTest, PiecesAreTheMatrixInOrder, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const RandomUnit unit = DrawUnit(random);
  TestRunner runner;
  runner.AddUnit("m", unit.scheme, unit.matrix);
  runner.Build();
  Fill(runner, random);
  const std::vector<Entry> entries = MakeEntries(runner.plan(), runner.units());
  RC_ASSERT(entries.size() == 1U);
  const std::uint64_t columns = unit.matrix.columns;
  Bytes whole(2 * unit.matrix.count() * unit.matrix.rows() * columns);
  RC_ASSERT(entries[0].bytes == whole.size());
  const std::vector<ByteSpan> live = runner.live();
  for (std::uint64_t expert = 0; expert < unit.matrix.count(); ++expert) {
    unit.scheme->Dequantise(
        unit.matrix, live, quant::Layout::kRuntime, expert, 0, unit.matrix.rows(),
        reinterpret_cast<std::uint16_t*>(whole.data()) + expert * unit.matrix.rows() * columns);
  }
  base::Buffer buffer;
  Bytes joined;
  for (const Piece& piece : PiecesOf(entries[0], 0, 12 * (1 + random() % 10'000))) {
    RC_ASSERT(piece.begin == joined.size());
    RC_ASSERT(piece.begin % 4 == 0U);
    const ByteSpan values = ValuesOf(entries[0], piece, live, buffer);
    RC_ASSERT(values.size() == piece.end - piece.begin);
    joined.insert(joined.end(), values.begin(), values.end());
  }
  RC_ASSERT(joined == whole);
  RC_ASSERT(runner.Hashes()["m.weight"] == CheckHashHex(CheckHash::kDevice, whole));
  RC_ASSERT(runner.Hashes({.hash = CheckHash::kSha256})["m.weight"] ==
            CheckHashHex(CheckHash::kSha256, whole));

  // A weight of ones has the values of its scales.
  std::ranges::fill(runner["m.weight"], std::byte{0x38});
  const BlockScales scales(entries[0], live);
  std::vector<float> row_scales(scales.blocks());
  std::vector<std::uint16_t> row(columns);
  for (std::uint64_t expert = 0; expert < unit.matrix.count(); ++expert) {
    std::vector<std::uint16_t> rows(unit.matrix.rows() * columns);
    unit.scheme->Dequantise(unit.matrix, live, quant::Layout::kRuntime, expert, 0,
                            unit.matrix.rows(), rows.data());
    for (std::uint64_t i = 0; i < rows.size(); ++i) {
      if (i % columns == 0) scales.OfRow(expert, i / columns, row_scales);
      RC_ASSERT(tensor::FromBf16(rows[i]) == row_scales[i % columns / 128]);
    }
  }
}

// However an entry is cut, the same elements are found to differ.
RC_GTEST_PROP(Fp8ValuesTest, PiecesGiveTheSameSums, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const RandomUnit unit = DrawUnit(random);
  TestRunner runner;
  runner.AddUnit("m", unit.scheme, unit.matrix);
  runner.Build();
  Fill(runner, random);
  const std::vector<Bytes> before = runner.memory();
  const std::vector<ByteSpan> expected(before.begin(), before.end());
  std::set<std::size_t> changed;
  for (std::size_t i = random() % 4; i > 0; --i) {
    const std::size_t at = random() % runner["m.weight"].size();
    runner["m.weight"][at] = before[0][at] ^ std::byte{0x80};
    if ((before[0][at] & std::byte{0x7f}) != std::byte{0}) changed.insert(at);
  }
  const std::vector<Entry> entries = MakeEntries(runner.plan(), runner.units());
  base::Pool<base::Buffer> buffers;
  const auto compare = [&](std::uint64_t bytes) {
    ErrorSums sums;
    for (const Piece& piece : PiecesOf(entries[0], 0, bytes)) {
      sums.Merge(CompareFp8(entries[0], piece, expected, runner.live(), buffers));
    }
    return sums;
  };
  const ErrorSums small = compare(12 * (1 + random() % 1'000));
  const ErrorSums large = compare(kPieceBytes);
  RC_ASSERT(small.unequal == changed.size());
  RC_ASSERT(large.unequal == changed.size());
  RC_ASSERT(small.exceeding == large.exceeding);
  RC_ASSERT(small.max == large.max);
  RC_ASSERT(std::abs(small.sum - large.sum) <= 1e-9 * large.sum);
}

}  // namespace
}  // namespace syncline::checker
