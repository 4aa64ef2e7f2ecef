#include "checker/small_values.h"

#include <cmath>
#include <limits>

#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using tensor::Dtype;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A sign, an exponent and `mantissa_bits`, all of whose bits are values.
float Decode(unsigned bits, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
  const unsigned exponent = bits >> mantissa_bits & ((1U << exponent_bits) - 1);
  const unsigned significand = exponent == 0 ? mantissa : mantissa | 1U << mantissa_bits;
  const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits;
  const float magnitude = std::ldexp(static_cast<float>(significand), power);
  return (bits >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -magnitude : magnitude;
}

}  // namespace

float SmallValue(Dtype dtype, std::uint8_t bits) {
  switch (dtype) {
    case Dtype::kF4:
      return Decode(bits, 2, 1, 1);
    case Dtype::kF6E2M3:
      return Decode(bits, 2, 3, 1);
    case Dtype::kF6E3M2:
      return Decode(bits, 3, 2, 3);
    case Dtype::kF8E4M3:
      return tensor::FromE4M3(bits);
    case Dtype::kF8E5M2:
      return tensor::FromE5M2(bits);
    case Dtype::kF8E4M3Fnuz:
      return bits == 0x80 ? kNan : Decode(bits, 4, 3, 8);
    case Dtype::kF8E5M2Fnuz:
      return bits == 0x80 ? kNan : Decode(bits, 5, 2, 16);
    case Dtype::kF8E8M0:
      return bits == 0xff ? kNan : std::ldexp(1.0F, bits - 127);
    default:
      return kNan;
  }
}

}  // namespace syncline::checker
