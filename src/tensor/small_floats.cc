#include "tensor/small_floats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace syncline::tensor {
namespace {

// An IEEE-like type of at most 16 bits: sign, exponent, mantissa.
template <int exponent_bits, int mantissa_bits>
struct Layout {
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr unsigned kSign = 1U << (exponent_bits + mantissa_bits);
  static constexpr unsigned kLargestExponent = (1U << exponent_bits) - 1;  // as stored
  static constexpr int kSmallest = 1 - kBias;                              // exponent of a normal

  static constexpr unsigned Exponent(unsigned bits) {
    return bits >> mantissa_bits & kLargestExponent;
  }
  static constexpr unsigned Mantissa(unsigned bits) { return bits & ((1U << mantissa_bits) - 1); }

  // Of finite bits, and of those that would be if the largest exponent were one like others.
  static float Value(unsigned bits) {
    const std::uint32_t wide = (bits & (kSign - 1)) << (23 - mantissa_bits);
    constexpr std::uint32_t kOffset = static_cast<std::uint32_t>(127 - kBias) << 23;
    const auto sign = (bits & kSign) != 0 ? 0x8000'0000U : 0U;
    if (Exponent(bits) != 0) return std::bit_cast<float>(wide + kOffset + sign);
    // Taken as the mantissa of a number that is one smallest normal too large.
    constexpr std::uint32_t kOne = kOffset + (1U << 23);
    const float magnitude = std::bit_cast<float>(wide + kOne) - std::bit_cast<float>(kOne);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) + sign);
  }

  // Magnitude bits of a finite value; what is too large runs into and beyond the largest exponent.
  static std::uint32_t Round(float magnitude) {
    constexpr int kDropped = 23 - mantissa_bits;
    const auto bits = std::bit_cast<std::uint32_t>(magnitude);
    if (magnitude < std::ldexp(1.0F, kSmallest)) {
      // Added to this, the last bit of a float is worth one subnormal step, so the sum is rounded.
      const float step = std::ldexp(1.0F, kSmallest + kDropped);
      return std::bit_cast<std::uint32_t>(magnitude + step) - std::bit_cast<std::uint32_t>(step);
    }
    const std::uint32_t rounded = bits + (1U << (kDropped - 1)) - 1 + (bits >> kDropped & 1U);
    return (rounded >> kDropped) - (static_cast<std::uint32_t>(127 - kBias) << mantissa_bits);
  }
};

using E4M3 = Layout<4, 3>;
using E5M2 = Layout<5, 2>;
using F16 = Layout<5, 10>;

template <typename Format>
float FromIeee(unsigned bits) {
  if (Format::Exponent(bits) != Format::kLargestExponent) return Format::Value(bits);
  const float magnitude = Format::Mantissa(bits) == 0 ? std::numeric_limits<float>::infinity()
                                                      : std::numeric_limits<float>::quiet_NaN();
  return (bits & Format::kSign) != 0 ? -magnitude : magnitude;
}

template <typename Format>
float UlpOf(unsigned bits) {
  const int exponent = std::max(static_cast<int>(Format::Exponent(bits)), 1);
  return std::ldexp(1.0F, exponent - Format::kBias - Format::kMantissaBits);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kE4M3Nan = 0x7F;
constexpr std::uint8_t kE4M3Largest = 0x7E;

}  // namespace

float FromF16(std::uint16_t bits) { return FromIeee<F16>(bits); }
float FromE5M2(std::uint8_t bits) { return FromIeee<E5M2>(bits); }

float FromE4M3(std::uint8_t bits) {
  if ((bits & 0x7FU) == kE4M3Nan) return (bits & 0x80U) != 0 ? -kNan : kNan;
  return E4M3::Value(bits);
}

std::uint16_t ToF16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? F16::kSign : 0);
  if (std::isnan(value)) return sign | 0x7E00;
  constexpr std::uint32_t kInfinity = 0x7C00;
  const float magnitude = std::fabs(value);
  const std::uint32_t bits = std::isinf(value) ? kInfinity : F16::Round(magnitude);
  return static_cast<std::uint16_t>(sign | std::min(bits, kInfinity));
}

std::uint8_t ToE4M3(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? E4M3::kSign : 0);
  if (std::isnan(value)) return sign | kE4M3Nan;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0F) return sign | kE4M3Largest;
  return static_cast<std::uint8_t>(sign | E4M3::Round(magnitude));
}

float Ulp(Dtype dtype, std::uint8_t bits) {
  if (dtype == Dtype::kF8E4M3) return std::isnan(FromE4M3(bits)) ? kNan : UlpOf<E4M3>(bits);
  if (dtype == Dtype::kF8E5M2) return std::isfinite(FromE5M2(bits)) ? UlpOf<E5M2>(bits) : kNan;
  return kNan;
}

}  // namespace syncline::tensor
