// Marlin's order of 4-bit values. A band is 64 rows (outputs) of a matrix; a tile is 16 columns
// (inputs) of a band: 8 bytes of each of its rows in the load layout, 512 bytes that follow one
// another in Marlin's. The widest vectors of the machine are used; every machine gives the same
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace syncline::quant {

inline constexpr std::size_t kBandRows = 64;
inline constexpr std::size_t kTileColumns = 16;
inline constexpr std::size_t kTileRowBytes = 8;
inline constexpr std::size_t kTileBytes = kBandRows * kTileRowBytes;

// One band of `tiles` tiles: row r begins at rows + r * row_stride, its first column in the lowest
// nibble. Tile t begins at tiled + t * tile_stride. The memories do not overlap.
void TileBand(const std::byte* rows, std::size_t row_stride, std::size_t tiles, std::byte* tiled,
              std::size_t tile_stride);
void UntileBand(const std::byte* tiled, std::size_t tile_stride, std::size_t tiles, std::byte* rows,
                std::size_t row_stride);

// Nibbles in groups that share a scale. The first group may have begun before them.
struct NibbleGroups {
  const float* scales = nullptr;  // of each group
  std::size_t size = 0;           // nibbles of a group; even
  std::size_t before = 0;         // nibbles of the first group that came before; even

  std::size_t GroupOf(std::size_t nibble) const { return (before + nibble) / size; }
};

// bf16[i] = (nibble i - 8) * scale, the product of fp32 rounded to bf16 (nearest, ties to even).
// `count` is even.
void DequantiseNibbles(const std::byte* nibbles, std::size_t count, const NibbleGroups& groups,
                       std::uint16_t* bf16);

}  // namespace syncline::quant
