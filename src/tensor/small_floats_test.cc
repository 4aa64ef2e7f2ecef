#include "tensor/small_floats.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace syncline::tensor {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The element whose value is nearest, of a tie the one with an even last bit; found by looking at
// all finite magnitudes.
template <typename Bits, typename From>
Bits NearestBySearch(float value, unsigned finite, From from) {
  const double magnitude = std::fabs(static_cast<double>(value));
  unsigned best = 0;
  double distance = magnitude;
  for (unsigned bits = 1; bits <= finite; ++bits) {
    const double d = std::fabs(static_cast<double>(from(static_cast<Bits>(bits))) - magnitude);
    if (d < distance || (d == distance && bits % 2 == 0)) {
      best = bits;
      distance = d;
    }
  }
  const auto sign = static_cast<unsigned>(std::signbit(value)) << (sizeof(Bits) * 8 - 1);
  return static_cast<Bits>(best | sign);
}

TEST(SmallFloatsTest, KnownElements) {
  EXPECT_EQ(FromE4M3(0x7E), 448.0F);
  EXPECT_EQ(FromE4M3(0x38), 1.0F);
  EXPECT_EQ(FromE4M3(0x01), std::ldexp(1.0F, -9));
  EXPECT_EQ(FromE4M3(0x88), -std::ldexp(1.0F, -6));
  EXPECT_TRUE(std::isnan(FromE4M3(0x7F)) && std::isnan(FromE4M3(0xFF)));
  EXPECT_EQ(FromE5M2(0x7B), 57344.0F);
  EXPECT_EQ(FromE5M2(0x01), std::ldexp(1.0F, -16));
  EXPECT_EQ(FromE5M2(0xFC), -kInfinity);
  EXPECT_TRUE(std::isnan(FromE5M2(0x7D)));
  EXPECT_EQ(FromF16(0x3C00), 1.0F);
  EXPECT_EQ(FromF16(0x7BFF), 65504.0F);
  EXPECT_EQ(FromF16(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(FromF16(0x7C00), kInfinity);
  EXPECT_EQ(FromBf16(0x3F80), 1.0F);
}

TEST(SmallFloatsTest, EveryElementComesBack) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    EXPECT_EQ(ToE4M3(FromE4M3(byte)), byte);
  }
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (std::isnan(FromF16(half))) {
      EXPECT_TRUE(std::isnan(FromF16(ToF16(FromF16(half)))));
    } else {
      EXPECT_EQ(ToF16(FromF16(half)), half);
    }
    if (std::isnan(FromBf16(half))) {
      EXPECT_EQ(ToBf16(FromBf16(half)), half | 0x40);
    } else {
      EXPECT_EQ(ToBf16(FromBf16(half)), half);
    }
  }
}

TEST(SmallFloatsTest, E4M3RoundsToTheNearest) {
  // All elements, the middles between neighbours, and the floats next to both.
  for (unsigned bits = 0; bits < 0x7E; ++bits) {
    const float low = FromE4M3(static_cast<std::uint8_t>(bits));
    const float middle = (low + FromE4M3(static_cast<std::uint8_t>(bits + 1))) / 2;
    for (const float base : {low, middle}) {
      for (const float value :
           {base, std::nextafter(base, 0.0F), std::nextafter(base, kInfinity), -base}) {
        EXPECT_EQ(ToE4M3(value), NearestBySearch<std::uint8_t>(value, 0x7E, FromE4M3)) << value;
      }
    }
  }
  EXPECT_EQ(ToE4M3(449.0F), 0x7E);
  EXPECT_EQ(ToE4M3(-kInfinity), 0xFE);
  EXPECT_EQ(ToE4M3(std::numeric_limits<float>::denorm_min()), 0);
}

RC_GTEST_PROP(SmallFloatsTest, HalvesRoundToTheNearest, (std::uint32_t any)) {
  // Exponents from 2^-27 to 2^15: all of F16 and what is just below it.
  const float value = std::bit_cast<float>((any & 0x807F'FFFFU) | ((100 + (any >> 9) % 43) << 23));
  if (std::fabs(value) < 65520.0F) {
    RC_ASSERT(ToF16(value) == NearestBySearch<std::uint16_t>(value, 0x7BFF, FromF16));
  } else {
    RC_ASSERT(std::isinf(FromF16(ToF16(value))));
  }
}

RC_GTEST_PROP(SmallFloatsTest, BrainFloatsRoundToTheNearest, (std::uint32_t any)) {
  const auto value = std::bit_cast<float>(any);
  RC_PRE(std::isfinite(value));
  const std::uint16_t rounded = ToBf16(value);
  const auto below = static_cast<std::uint16_t>(any >> 16);
  const double low = FromBf16(below);
  // Beyond the largest stands what would follow it, and infinity is written there.
  const double high =
      low + (low - static_cast<double>(FromBf16(below ^ 1U))) * (below % 2 == 0 ? -1.0 : 1.0);
  const double to_low = std::fabs(value - low);
  const double to_high = std::fabs(high - value);
  if (to_low < to_high) RC_ASSERT(rounded == below);
  if (to_low > to_high) RC_ASSERT(rounded == below + 1);
  if (to_low == to_high) RC_ASSERT(rounded % 2 == 0);
}

TEST(SmallFloatsTest, OverflowAndNan) {
  EXPECT_EQ(ToF16(65520.0F), 0x7C00);
  EXPECT_EQ(ToF16(65519.0F), 0x7BFF);
  EXPECT_EQ(ToF16(-kInfinity), 0xFC00);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::max()), 0x7C00);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()), 0x7F80);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(FromF16(ToF16(nan))));
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::bit_cast<float>(0xFF80'0001U)))));
  EXPECT_EQ(ToE4M3(nan), 0x7F);
  EXPECT_EQ(ToE4M3(-nan), 0xFF);
}

// The gap to the next larger magnitude, which for the largest is that to the next smaller one.
TEST(SmallFloatsTest, UlpIsTheGapBetweenNeighbours) {
  struct Case {
    Dtype dtype;
    float (*from)(std::uint8_t);
    unsigned largest;
  };
  for (const Case& c :
       {Case{Dtype::kF8E4M3, FromE4M3, 0x7E}, Case{Dtype::kF8E5M2, FromE5M2, 0x7B}}) {
    for (unsigned bits = 0; bits <= c.largest; ++bits) {
      const unsigned low = std::min(bits, c.largest - 1);
      const float gap =
          c.from(static_cast<std::uint8_t>(low + 1)) - c.from(static_cast<std::uint8_t>(low));
      EXPECT_EQ(Ulp(c.dtype, static_cast<std::uint8_t>(bits)), gap) << bits;
      EXPECT_EQ(Ulp(c.dtype, static_cast<std::uint8_t>(bits | 0x80U)), gap) << bits;
    }
    EXPECT_TRUE(std::isnan(Ulp(c.dtype, 0x7F)));
  }
  EXPECT_TRUE(std::isnan(Ulp(Dtype::kF8E5M2, 0x7C)));
  EXPECT_TRUE(std::isnan(Ulp(Dtype::kU8, 1)));
}

}  // namespace
}  // namespace syncline::tensor
