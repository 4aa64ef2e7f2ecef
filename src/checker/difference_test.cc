#include "checker/difference.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "checker/small_values.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using tensor::Dtype;
using Bytes = std::vector<std::byte>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
ErrorSums Compare(Dtype dtype, const std::vector<T>& expected, const std::vector<T>& actual) {
  return CompareValues(dtype, std::as_bytes(std::span(expected)), std::as_bytes(std::span(actual)));
}

TEST(DifferenceTest, CountsAndSums) {
  std::vector<float> rising(10);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<float>(i);
  const ErrorSums sums = Compare(Dtype::kF32, rising, std::vector<float>(10));
  EXPECT_EQ(sums.max, 9.0);
  EXPECT_EQ(sums.sum / 10, 4.5);
  EXPECT_EQ(sums.unequal, 9U);
  EXPECT_EQ(sums.exceeding, 9U);
}

TEST(DifferenceTest, EqualByValue) {
  const auto infinity = static_cast<float>(kInfinity);
  EXPECT_EQ(Compare<float>(Dtype::kF32, {0.0F, -0.0F, infinity}, {-0.0F, 0.0F, infinity}).unequal,
            0U);
  EXPECT_EQ(Compare<std::uint16_t>(Dtype::kBF16, {0x8000}, {0x0000}).unequal, 0U);
  EXPECT_EQ(Compare<std::uint8_t>(Dtype::kU8, {0x80}, {0x00}).unequal, 1U);
  EXPECT_EQ(Compare<float>(Dtype::kF32, {infinity}, {-infinity}).max, kInfinity);
}

// Not to itself either, though the bytes are the same; in every type that has one, at any place of
// a tensor that takes several looks.
TEST(DifferenceTest, NanIsEqualToNothing) {
  struct Case {
    Dtype dtype;
    std::uint64_t bits;
  };
  for (const Case& nan :
       {Case{Dtype::kF32, 0x7fc0'0000}, Case{Dtype::kF32, 0xff80'0001},
        Case{Dtype::kF64, 0x7ff8'0000'0000'0000}, Case{Dtype::kF16, 0xfc01},
        Case{Dtype::kBF16, 0x7fc0}, Case{Dtype::kBF16, 0xff81}, Case{Dtype::kF8E4M3, 0x7f},
        Case{Dtype::kF8E4M3, 0xff}, Case{Dtype::kF8E5M2, 0x7d}, Case{Dtype::kF8E5M2, 0xff},
        Case{Dtype::kF8E8M0, 0xff}, Case{Dtype::kF8E4M3Fnuz, 0x80}, Case{Dtype::kF8E5M2Fnuz, 0x80},
        Case{Dtype::kC64, 0x7fc0'0000}}) {
    const std::size_t size = tensor::Bits(nan.dtype) / 8;
    for (const std::size_t place : {0, 1, 12'345, 39'999}) {
      Bytes bytes(40'000 * size);
      std::memcpy(&bytes[place * size], &nan.bits, size);
      const ErrorSums sums = CompareValues(nan.dtype, bytes, Bytes(bytes));
      EXPECT_EQ(sums.exceeding, 1U) << tensor::Name(nan.dtype) << " " << place;
      EXPECT_TRUE(std::isnan(sums.max));
      EXPECT_TRUE(std::isnan(sums.sum));
    }
  }
  // What lies beside NaN: infinity where there is one, else the largest number.
  for (const Case& finite :
       {Case{Dtype::kF32, 0x7f80'0000}, Case{Dtype::kF16, 0x7c00}, Case{Dtype::kBF16, 0xff80},
        Case{Dtype::kF8E4M3, 0x7e}, Case{Dtype::kF8E5M2, 0xfc}, Case{Dtype::kF8E8M0, 0xfe},
        Case{Dtype::kF8E4M3Fnuz, 0xff}, Case{Dtype::kI8, 0x80}}) {
    const std::size_t size = tensor::Bits(finite.dtype) / 8;
    Bytes bytes(1'000 * size);
    std::memcpy(&bytes[3 * size], &finite.bits, size);
    EXPECT_EQ(CompareValues(finite.dtype, bytes, Bytes(bytes)).unequal, 0U)
        << tensor::Name(finite.dtype);
  }
}

// A later number does not hide it.
TEST(DifferenceTest, MaximumStaysNan) {
  const ErrorSums sums = Compare<float>(Dtype::kF32, {1, kNan, 1}, {2, 0, 3});
  EXPECT_TRUE(std::isnan(sums.max));
  EXPECT_EQ(sums.exceeding, 3U);
  ErrorSums merged;
  merged.Merge(sums);
  merged.Merge(Compare<float>(Dtype::kF32, {1}, {9}));
  EXPECT_TRUE(std::isnan(merged.max));
  EXPECT_EQ(merged.exceeding, 4U);
}

TEST(DifferenceTest, WholeNumbersLoseNothing) {
  constexpr std::int64_t kBig = std::int64_t{1} << 53;
  EXPECT_EQ(Compare<std::int64_t>(Dtype::kI64, {kBig}, {kBig + 1}).max, 1.0);
  using Limits = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(Compare<std::int64_t>(Dtype::kI64, {Limits::min()}, {Limits::max()}).max, 0x1p64);
  EXPECT_EQ(Compare<std::int8_t>(Dtype::kI8, {-128}, {127}).max, 255.0);
  EXPECT_EQ(Compare<std::uint8_t>(Dtype::kU8, {255}, {1}).max, 254.0);
  EXPECT_EQ(Compare<std::int32_t>(Dtype::kI32, {-1}, {1}).max, 2.0);
  EXPECT_EQ(Compare<std::uint16_t>(Dtype::kU16, {0xffff}, {0}).max, 65'535.0);
  EXPECT_EQ(Compare<std::uint8_t>(Dtype::kBool, {1, 0}, {0, 0}).max, 1.0);
}

// 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
TEST(DifferenceTest, ElementsOfFourBits) {
  const ErrorSums sums = Compare<std::uint8_t>(Dtype::kF4, {0x70, 0x11}, {0xf0, 0x31});
  EXPECT_EQ(sums.unequal, 2U);
  EXPECT_EQ(sums.max, 12.0);
  EXPECT_EQ(sums.sum, 13.0);
  EXPECT_EQ(ValueCount(Dtype::kF4, 2), 4U);
}

// The second of four elements in three bytes has its bits in two of them: 011111, which is 28 in
// E3M2 and 7.5 in E2M3.
TEST(DifferenceTest, ElementsOfSixBits) {
  const std::vector<std::uint8_t> zero(3);
  const std::vector<std::uint8_t> second = {0xc0, 0x07, 0x00};
  EXPECT_EQ(Compare(Dtype::kF6E3M2, zero, second).max, 28.0);
  EXPECT_EQ(Compare(Dtype::kF6E2M3, zero, second).max, 7.5);
  EXPECT_EQ(Compare(Dtype::kF6E2M3, zero, second).unequal, 1U);
  EXPECT_EQ(ValueCount(Dtype::kF6E2M3, 3), 4U);
  EXPECT_EQ(ValueCount(Dtype::kC64, 16), 4U);
}

TEST(DifferenceTest, SmallValues) {
  EXPECT_EQ(SmallValue(Dtype::kF8E8M0, 127), 1.0F);
  EXPECT_EQ(SmallValue(Dtype::kF8E8M0, 0), 0x1p-127F);
  EXPECT_EQ(SmallValue(Dtype::kF8E4M3Fnuz, 0x40), 1.0F);
  EXPECT_EQ(SmallValue(Dtype::kF8E4M3Fnuz, 0x7f), 240.0F);
  EXPECT_EQ(SmallValue(Dtype::kF8E5M2Fnuz, 0x40), 1.0F);
  EXPECT_EQ(SmallValue(Dtype::kF8E5M2Fnuz, 0x7f), 57'344.0F);
  EXPECT_EQ(SmallValue(Dtype::kF8E5M2Fnuz, 0x01), 0x1p-17F);
}

// However a tensor is cut, and whether or not its blocks have an error, the sums are those of all
// its elements one by one.
RC_GTEST_PROP(DifferenceTest, PiecesGiveTheSame, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const std::size_t count = 1 + random() % 20'000;
  std::vector<std::int16_t> expected(count);
  for (std::int16_t& value : expected) value = static_cast<std::int16_t>(random());
  std::vector<std::int16_t> actual = expected;
  double sum = 0;
  double max = 0;
  std::uint64_t unequal = 0;
  for (std::size_t i = random() % 5; i > 0; --i) {
    actual[random() % count] = static_cast<std::int16_t>(random());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = std::abs(expected[i] - actual[i]);
    sum += difference;
    max = std::max(max, difference);
    if (difference != 0) ++unequal;
  }
  ErrorSums merged;
  const ByteSpan old_bytes = std::as_bytes(std::span(expected));
  const ByteSpan new_bytes = std::as_bytes(std::span(actual));
  for (std::size_t at = 0; at < count;) {
    const std::size_t take = std::min<std::size_t>(count - at, 1 + random() % 9'000);
    merged.Merge(CompareValues(Dtype::kI16, old_bytes.subspan(2 * at, 2 * take),
                               new_bytes.subspan(2 * at, 2 * take)));
    at += take;
  }
  RC_ASSERT(merged.sum == sum);
  RC_ASSERT(merged.max == max);
  RC_ASSERT(merged.unequal == unequal);
  RC_ASSERT(merged.exceeding == unequal);
}

}  // namespace
}  // namespace syncline::checker
