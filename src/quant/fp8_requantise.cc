// What becomes of an element depends on its 8 bits and its block's scales, so the arithmetic of a
// block is that of a table. Rounding keeps the order of magnitudes, so the largest element has the
// largest value.
#include "quant/fp8_requantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "quant/fp8_rows.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

constexpr std::uint8_t kNan = 0x7F;
constexpr std::uint8_t kSign = 0x80;

// The exponent byte of a scale that needs no rounding; 0 if it is no such.
std::uint8_t ExponentOf(float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t exponent = bits >> 23;
  return exponent << 23 == bits && exponent < 255 ? static_cast<std::uint8_t>(exponent) : 0;
}

// The exponent of the smallest power of two that is not below amax / 448.
std::uint8_t ExponentFor(float amax) {
  const auto bits = std::bit_cast<std::uint32_t>(amax / 448.0F);
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7F'FFFFU) != 0 ? 1 : 0);
  return static_cast<std::uint8_t>(std::clamp<std::uint32_t>(exponent, 1, 254));
}

// Calls body(block, elements) for each row of each block, row by row.
template <typename Body>
void ForRows(const Fp8Blocks& blocks, const Body& body) {
  for (std::uint64_t row = 0; row < blocks.rows; ++row) {
    auto* q = reinterpret_cast<std::uint8_t*>(blocks.weight + row * blocks.stride);
    for (std::size_t block = 0; block < blocks.scales.size(); ++block) {
      const std::uint64_t column = block * kFp8Block;
      body(block, std::span(q + column, std::min(kFp8Block, blocks.columns - column)));
    }
  }
}

// The largest magnitude, as bits, plus 1; 0 where all are NaN.
std::uint8_t LargestPlusOne(std::span<const std::uint8_t> row, std::uint8_t largest) {
  for (const std::uint8_t q : row) {
    largest = std::max(largest, static_cast<std::uint8_t>((q + 1) & kNan));
  }
  return largest;
}

using Table = std::array<std::uint8_t, 2 * std::size_t{kSign}>;

// Makes the table of a block, and returns the exponent of its new scale.
std::uint8_t MakeTable(float scale, std::uint8_t largest_plus_one, Table& table) {
  static const auto values_of = [] {
    std::array<float, kSign> values;
    for (std::size_t q = 0; q < kSign; ++q) {
      values[q] = tensor::FromE4M3(static_cast<std::uint8_t>(q));
    }
    return values;
  }();
  const auto value = [scale](std::size_t q) {
    return tensor::FromBf16(tensor::ToBf16(values_of[q] * scale));
  };
  constexpr float kLeast = 1e-4F;
  const float amax = largest_plus_one == 0 ? kLeast : std::fabs(value(largest_plus_one - 1U));
  const std::uint8_t exponent = ExponentFor(std::isnan(amax) ? kLeast : std::max(amax, kLeast));
  const float inverse = std::ldexp(1.0F, 127 - exponent);
  for (std::size_t q = 0; q < kSign; ++q) {
    const float x = value(q) * inverse;
    table[q] = std::isnan(x) ? kNan : tensor::ToE4M3(x);
    table[q | kSign] = table[q] ^ kSign;
  }
  return exponent;
}

}  // namespace

std::uint32_t Requantise(const Fp8Blocks& blocks) {
  std::array<std::uint8_t, kExponentsInWord> exponents = {};
  std::array<bool, kExponentsInWord> anew = {};
  for (std::size_t i = 0; i < blocks.scales.size(); ++i) {
    exponents[i] = ExponentOf(blocks.scales[i]);
    anew[i] = exponents[i] == 0;
  }
  if (std::ranges::find(anew, true) != anew.end()) {
    std::array<std::uint8_t, kExponentsInWord> largest = {};
    ForRows(blocks, [&](std::size_t block, std::span<std::uint8_t> row) {
      if (anew[block]) largest[block] = LargestPlusOne(row, largest[block]);
    });
    std::array<Table, kExponentsInWord> tables;
    for (std::size_t i = 0; i < blocks.scales.size(); ++i) {
      if (anew[i]) exponents[i] = MakeTable(blocks.scales[i], largest[i], tables[i]);
    }
    ForRows(blocks, [&](std::size_t block, std::span<std::uint8_t> row) {
      if (!anew[block]) return;
      const Table& table = tables[block];
      for (std::uint8_t& q : row) q = table[q];
    });
  }
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    word |= static_cast<std::uint32_t>(exponents[i]) << (8 * i);
  }
  return word;
}

}  // namespace syncline::quant
