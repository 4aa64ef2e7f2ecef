#include "checker/random_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "checker/small_values.h"
#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using tensor::Dtype;
using Bytes = std::vector<std::byte>;

template <typename T>
std::vector<T> Draw(Dtype dtype, std::size_t count, std::uint64_t seed = 1) {
  std::vector<T> values(count);
  FillRandom(dtype, seed, std::as_writable_bytes(std::span(values)));
  return values;
}

// Mean 1/2, variance 1/12, a tenth in each tenth: of 100,000 that is five times their standard
// deviations.
template <typename T, typename Value>
void ExpectUniform(const std::vector<T>& elements, const Value& value, double tolerance) {
  std::array<double, 10> tenths = {};
  double sum = 0;
  for (const T& element : elements) {
    const double number = value(element);
    ASSERT_GE(number, 0.0);
    ASSERT_LE(number, 1.0);
    sum += number;
    ++tenths[std::min<std::size_t>(9, static_cast<std::size_t>(number * 10))];
  }
  const auto count = static_cast<double>(elements.size());
  EXPECT_NEAR(sum / count, 0.5, tolerance);
  for (const double tenth : tenths) EXPECT_NEAR(tenth / count, 0.1, tolerance);
}

TEST(RandomValuesTest, FloatsAreUniform) {
  constexpr std::size_t kCount = 100'000;
  ExpectUniform(Draw<float>(Dtype::kF32, kCount), [](float x) { return double{x}; }, 0.005);
  ExpectUniform(Draw<double>(Dtype::kF64, kCount), [](double x) { return x; }, 0.005);
  ExpectUniform(
      Draw<std::uint16_t>(Dtype::kBF16, kCount),
      [](std::uint16_t x) { return double{tensor::FromBf16(x)}; }, 0.01);
  ExpectUniform(
      Draw<std::uint16_t>(Dtype::kF16, kCount),
      [](std::uint16_t x) { return double{tensor::FromF16(x)}; }, 0.005);
  // Neighbours in the upper half are 1/16 apart: the tenths are not even.
  ExpectUniform(
      Draw<std::uint8_t>(Dtype::kF8E4M3, kCount),
      [](std::uint8_t x) { return double{tensor::FromE4M3(x)}; }, 0.07);
}

// Floats of 16 bits are those of 32 bits that the same seed gives, rounded.
TEST(RandomValuesTest, HalvesAreRounded) {
  const auto floats = Draw<float>(Dtype::kF32, 1'000'000);
  const auto f16 = Draw<std::uint16_t>(Dtype::kF16, 1'000'000);
  const auto bf16 = Draw<std::uint16_t>(Dtype::kBF16, 1'000'000);
  std::size_t subnormal = 0;
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(f16[i], tensor::ToF16(floats[i])) << floats[i];
    ASSERT_EQ(bf16[i], tensor::ToBf16(floats[i])) << floats[i];
    if (f16[i] < 0x400) ++subnormal;
  }
  EXPECT_GT(subnormal, 20U);
}

// Those of 8 bits are numbers of 16 bits that the same seed gives, by 65536, rounded to nearest,
// ties to even.
TEST(RandomValuesTest, SmallFloatsAreRounded) {
  const auto numbers = Draw<std::uint16_t>(Dtype::kU16, 1'000'000);
  const auto drawn = Draw<std::uint8_t>(Dtype::kF8E4M3, 1'000'000);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    ASSERT_EQ(drawn[i], tensor::ToE4M3(static_cast<float>(numbers[i]) / 65'536)) << numbers[i];
  }
  for (const Dtype dtype :
       {Dtype::kF8E5M2, Dtype::kF8E8M0, Dtype::kF8E4M3Fnuz, Dtype::kF8E5M2Fnuz}) {
    for (const std::uint8_t bits : Draw<std::uint8_t>(dtype, 10'000)) {
      ASSERT_GE(SmallValue(dtype, bits), 0.0F);
      ASSERT_LE(SmallValue(dtype, bits), 1.0F);
    }
  }
}

TEST(RandomValuesTest, BooleansHaveBothValues) {
  const auto values = Draw<std::uint8_t>(Dtype::kBool, 1'003);
  std::size_t ones = 0;
  for (const std::uint8_t value : values) {
    ASSERT_LE(value, 1);
    ones += value;
  }
  EXPECT_NEAR(static_cast<double>(ones), 501, 80);
}

TEST(RandomValuesTest, WholeNumbersTakeTheirRange) {
  const auto bytes = Draw<std::int8_t>(Dtype::kI8, 20'000);
  EXPECT_EQ(std::set<std::int8_t>(bytes.begin(), bytes.end()).size(), 256U);
  const auto words = Draw<std::int32_t>(Dtype::kI32, 20'000);
  using Limits = std::numeric_limits<std::int32_t>;
  EXPECT_LT(*std::ranges::min_element(words), Limits::min() / 100 * 99);
  EXPECT_GT(*std::ranges::max_element(words), Limits::max() / 100 * 99);
}

TEST(RandomValuesTest, TheSeedSaysAllAndNoByteIsLeft) {
  for (const tensor::DtypeInfo& info : tensor::DtypeTable()) {
    for (const std::size_t elements : {0, 4, 8, 1'020, 4'096, 10'004}) {
      const std::size_t size = elements * info.bits / 8;
      Bytes first(size, std::byte{0xaa});
      Bytes second(size, std::byte{0x55});
      FillRandom(info.dtype, 7, first);
      FillRandom(info.dtype, 7, second);
      EXPECT_EQ(first, second) << info.name << " " << size;
      FillRandom(info.dtype, 8, second);
      EXPECT_TRUE(size < 100 || first != second) << info.name << " " << size;
    }
  }
}

}  // namespace
}  // namespace syncline::checker
