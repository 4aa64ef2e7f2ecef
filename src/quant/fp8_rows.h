// Values of one row of a block-wise fp8 matrix. The widest vectors of the machine are used; every
// machine gives the same values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace syncline::quant {

inline constexpr std::uint64_t kFp8Block = 128;  // rows and columns of a block

// bf16[i] = e4m3[i] * scales[i / kFp8Block], the product of fp32 rounded to bf16 (nearest, ties to
// even).
void DequantiseFp8Row(const std::uint8_t* e4m3, const float* scales, std::size_t columns,
                      std::uint16_t* bf16);

}  // namespace syncline::quant
