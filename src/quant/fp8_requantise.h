// Blocks of fp8 with scales that are powers of two (the rules are in fp8_block.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace syncline::quant {

inline constexpr std::uint64_t kExponentsInWord = 4;

// Blocks of kFp8Block columns side by side, at most kExponentsInWord; the last may be short.
struct Fp8Blocks {
  std::byte* weight;  // of the first element
  std::uint64_t rows;
  std::uint64_t columns;  // of all of them
  std::uint64_t stride;   // of rows
  std::span<const float> scales;
};

// Quantises anew those whose scale is no power of two. Returns the exponents of the scales that
// they have then, the first in the lowest byte.
std::uint32_t Requantise(const Fp8Blocks& blocks);

}  // namespace syncline::quant
