// Values of rows of a block-wise fp8 matrix. The widest vectors of the machine are used; every
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

// The same of several rows that share their scales: `stride` bytes, and `bf16_stride` elements, from
// one to the next.
void DequantiseFp8Rows(const std::uint8_t* e4m3, std::size_t rows, std::size_t stride,
                       const float* scales, std::size_t columns, std::uint16_t* bf16,
                       std::size_t bf16_stride);

}  // namespace syncline::quant
