// Weights and scales of 4-bit integers between the two layouts of wna16_marlin.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "quant/cell_transpose.h"
#include "quant/marlin_tiles.h"
#include "quant/scheme.h"

namespace syncline::quant {

// Sizes of one matrix.
struct MarlinSizes {
  MarlinSizes(const Matrix& matrix, std::uint64_t group)  // group as in Wna16Marlin
      : rows(matrix.rows()),
        columns(matrix.columns),
        bands(rows / kBandRows),
        tiles(columns / kTileColumns),
        groups(group == 0 ? 1 : columns / group) {}
  std::uint64_t row_bytes() const { return columns / 2; }
  std::uint64_t band_bytes() const { return kBandRows * row_bytes(); }
  std::uint64_t weight_bytes() const { return rows * row_bytes(); }
  std::uint64_t scales() const { return rows * groups; }
  std::uint64_t scale_bytes() const { return scales() * sizeof(std::uint16_t); }

  std::uint64_t rows;
  std::uint64_t columns;
  std::uint64_t bands;
  std::uint64_t tiles;   // of each band
  std::uint64_t groups;  // of each row
};

// For place x of a band's scales of one group in runtime layout, the row within the band.
using MarlinScaleOrder = std::array<std::uint8_t, kBandRows>;
const MarlinScaleOrder& ScaleOrder(const MarlinSizes& sizes);

// Repacks matrices of one size, one after another, in one direction. The pool must outlive it. Not
// thread-safe.
class MarlinRepack {
 public:
  enum class Direction : std::uint8_t { kToRuntime, kToLoad };
  MarlinRepack(const MarlinSizes& sizes, Direction direction, base::ThreadPool& pool);

  // One matrix, in place.
  void Run(std::byte* weight, std::byte* scales);

 private:
  void RunBands(std::byte* weight, const std::byte* scales);
  // Those of bands [first, last).
  void ReorderScales(std::uint64_t first, std::uint64_t last, std::byte* scales) const;

  MarlinSizes sizes_;
  Direction direction_;
  base::ThreadPool& pool_;
  CellTranspose transpose_;
  std::size_t stride_;                          // of rows in the copy of a band
  std::vector<std::vector<std::byte>> copies_;  // of a band, for each thread
  std::vector<std::uint16_t> scales_;           // a copy of those of a matrix
};

}  // namespace syncline::quant
