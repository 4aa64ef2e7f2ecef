// SIMD comparison of tensor images: which units (of 1 or 2 bytes) differ, as one bit each. The
// widest vectors of the machine are used; every machine gives the same result.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace syncline::tensor {

// Words of a mask over that many bytes.
constexpr std::size_t MaskWords(std::size_t bytes, std::size_t unit_bytes) {
  return (bytes / unit_bytes + 63) / 64;
}

// image = a ^ b, and bit u % 64 of mask[u / 64] says whether unit u of it is not zero. `bytes` is a
// multiple of unit_bytes (1 or 2); all MaskWords() words are written.
void XorWithMask(const std::byte* a, const std::byte* b, std::size_t bytes, std::size_t unit_bytes,
                 std::byte* image, std::uint64_t* mask);

// The mask of an image that is there already.
void NonZeroMask(const std::byte* image, std::size_t bytes, std::size_t unit_bytes,
                 std::uint64_t* mask);

// Calls visit(u) for each set bit, in ascending order.
template <typename Visit>
void ForEachSet(const std::uint64_t* mask, std::size_t words, const Visit& visit) {
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      visit(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
}

// Elements with a set bit, where an element is `units` (1, 2 or 4) neighbouring units.
std::uint64_t CountElements(const std::uint64_t* mask, std::size_t words, std::size_t units);

}  // namespace syncline::tensor
