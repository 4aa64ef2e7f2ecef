// Values of the element types of 8 and 16 bits, and the nearest element to a value. Elements are
// given as their bits.
//
//   type    exponent  mantissa   largest finite   beyond it
//   E4M3    4 (bias 7)    3            448        no infinity; NaN is S.1111.111
//   E5M2    5 (bias 15)   2          57344        infinity, NaN
//   F16     5 (bias 15)  10          65504        infinity, NaN
//   BF16    8 (bias 127)  7       3.39e38         infinity, NaN
//
// Rounding is to nearest, ties to even; subnormals are exact. NaN stays NaN with its sign. Sources:
// "FP8 Formats for Deep Learning" (2022) for E4M3 and E5M2; IEEE 754 for F16.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace syncline::tensor {

inline float FromBf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline std::uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) {
    return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

float FromF16(std::uint16_t bits);
std::uint16_t ToF16(float value);

float FromE4M3(std::uint8_t bits);
float FromE5M2(std::uint8_t bits);
// Saturating: what is larger than 448, also infinity, becomes 448.
std::uint8_t ToE4M3(float value);

// The distance between neighbours of an element of type kF8E4M3 or kF8E5M2 within its power of two;
// of zero and subnormals that between subnormals. NaN for infinity and NaN, and of other types.
float Ulp(Dtype dtype, std::uint8_t bits);

}  // namespace syncline::tensor
