// The weights of a matrix are N / 64 bands of 64 rows, each K / 16 tiles wide (marlin_tiles.h).
//
//   load       bands, of each the rows, of each row the tiles' 8 bytes
//   between    bands, of each the tiles of 512 bytes
//   runtime    tiles of 16 columns, of each the bands
//
// 1. Load to between: band by band, with a copy of one band.
// 2. Between to runtime: a matrix of bands and tiles is transposed in place (cell_transpose.h).
// Restore does both backwards.
#include "quant/wna16_marlin.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "quant/cell_transpose.h"
#include "quant/marlin_tiles.h"
#include "quant/matrix_check.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using base::Code;
using base::Fail;
using tensor::Dtype;

// Sizes of one matrix.
struct Sizes {
  Sizes(const Matrix& matrix, std::uint64_t group)
      : rows(matrix.rows()),
        columns(matrix.columns),
        bands(rows / kBandRows),
        tiles(columns / kTileColumns),
        groups(group == 0 ? 1 : columns / group) {}
  std::uint64_t row_bytes() const { return columns / 2; }
  std::uint64_t band_bytes() const { return kBandRows * row_bytes(); }
  std::uint64_t weight_bytes() const { return rows * row_bytes(); }
  std::uint64_t scale_bytes() const { return rows * groups * sizeof(std::uint16_t); }

  std::uint64_t rows;
  std::uint64_t columns;
  std::uint64_t bands;
  std::uint64_t tiles;
  std::uint64_t groups;  // of each row
};

// Calls body(band, scratch) for each band; `scratch` is memory of the thread that calls.
template <typename Body>
void ForEachBand(std::uint64_t bands, std::size_t scratch_bytes, base::ThreadPool& pool,
                 const Body& body) {
  const std::size_t threads = std::min<std::uint64_t>(pool.size(), bands);
  std::vector<std::vector<std::byte>> scratch(threads);
  for (auto& memory : scratch) memory.resize(scratch_bytes);
  std::atomic<std::uint64_t> next = 0;
  (void)pool.ParallelFor(threads, [&](std::size_t thread) -> base::Status {
    for (std::uint64_t band = next++; band < bands; band = next++) {
      body(band, scratch[thread].data());
    }
    return {};
  });
}

// Rows of a copied band are kept a cache line further apart, else those of many widths would fall
// onto the same few places of the cache.
constexpr std::size_t kGap = 64;

void TileBands(const Sizes& sizes, std::byte* weight, base::ThreadPool& pool) {
  const std::size_t stride = sizes.row_bytes() + kGap;
  ForEachBand(sizes.bands, kBandRows * stride, pool, [&](std::uint64_t band, std::byte* scratch) {
    std::byte* at = weight + band * sizes.band_bytes();
    for (std::size_t row = 0; row < kBandRows; ++row) {
      std::memcpy(scratch + row * stride, at + row * sizes.row_bytes(), sizes.row_bytes());
    }
    TileBand(scratch, stride, sizes.tiles, at, kTileBytes);
  });
}

void UntileBands(const Sizes& sizes, std::byte* weight, base::ThreadPool& pool) {
  ForEachBand(sizes.bands, sizes.band_bytes(), pool, [&](std::uint64_t band, std::byte* scratch) {
    std::byte* at = weight + band * sizes.band_bytes();
    std::memcpy(scratch, at, sizes.band_bytes());
    UntileBand(scratch, kTileBytes, sizes.tiles, at, sizes.row_bytes());
  });
}

// For place x of the scales of a band in runtime layout, the row within the band.
using ScaleOrder = std::array<std::uint8_t, kBandRows>;
constexpr ScaleOrder kGroupedOrder = [] {
  ScaleOrder order = {};
  for (std::size_t x = 0; x < kBandRows; ++x) {
    order[x] = static_cast<std::uint8_t>(x / 8 + 8 * (x % 8));
  }
  return order;
}();
constexpr ScaleOrder kSingleOrder = [] {
  constexpr std::array<std::uint8_t, 8> kFrom = {0, 1, 8, 9, 16, 17, 24, 25};
  ScaleOrder order = {};
  for (std::size_t x = 0; x < kBandRows; ++x) {
    order[x] = static_cast<std::uint8_t>(x / 32 * 32 + 2 * (x % 32 / 8) + kFrom[x % 8]);
  }
  return order;
}();

const ScaleOrder& OrderOf(const Sizes& sizes) {
  return sizes.groups == 1 ? kSingleOrder : kGroupedOrder;
}

// Calls body(load, runtime) with the number of each scale of a band in both layouts.
template <typename Body>
void ForScales(const Sizes& sizes, std::uint64_t band, const Body& body) {
  const ScaleOrder& order = OrderOf(sizes);
  for (std::uint64_t group = 0; group < sizes.groups; ++group) {
    for (std::size_t x = 0; x < kBandRows; ++x) {
      body((band * kBandRows + order[x]) * sizes.groups + group,
           group * sizes.rows + band * kBandRows + x);
    }
  }
}

// Gives body(band, from, to) a copy of the scales of one matrix, and their slot.
template <typename Body>
void ReorderScales(const Sizes& sizes, std::byte* scales, base::ThreadPool& pool,
                   const Body& body) {
  std::vector<std::uint16_t> copy(sizes.rows * sizes.groups);
  std::memcpy(copy.data(), scales, sizes.scale_bytes());
  (void)pool.ParallelFor(sizes.bands, [&](std::size_t band) -> base::Status {
    body(band, copy.data(), scales);
    return {};
  });
}

void StoreScale(std::byte* scales, std::uint64_t number, std::uint16_t scale) {
  base::Store(scales + number * sizeof(scale), scale);
}

float ScaleValue(const std::byte* scales, std::uint64_t number, Dtype dtype) {
  const auto bits = base::Load<std::uint16_t>(scales + number * sizeof(std::uint16_t));
  return dtype == Dtype::kF16 ? tensor::FromF16(bits) : tensor::FromBf16(bits);
}

// Columns [first, last) of one row, `nibbles` and `bf16` from the first on.
template <typename ScaleOf>
void DequantiseRow(const Sizes& sizes, std::uint64_t first, std::uint64_t last,
                   const std::byte* nibbles, std::uint16_t* bf16, const ScaleOf& scale_of) {
  const std::uint64_t width = sizes.columns / sizes.groups;
  for (std::uint64_t column = first; column < last;) {
    const std::uint64_t group = column / width;
    const std::uint64_t end = std::min(last, (group + 1) * width);
    DequantiseNibbles(nibbles + (column - first) / 2, end - column, scale_of(group),
                      bf16 + (column - first));
    column = end;
  }
}

// One band out of the runtime layout, a few tiles at a time.
void DequantiseBand(const Sizes& sizes, const std::byte* weight, const std::byte* scales,
                    Dtype dtype, std::uint64_t band, std::uint16_t* bf16) {
  constexpr std::uint64_t kTiles = 16;
  constexpr std::size_t kStride = kTiles * kTileRowBytes;
  std::array<std::byte, kBandRows * kStride> rows;
  const ScaleOrder& order = OrderOf(sizes);
  const std::size_t tile_stride = sizes.bands * kTileBytes;
  for (std::uint64_t tile = 0; tile < sizes.tiles; tile += kTiles) {
    const std::uint64_t last = std::min(sizes.tiles, tile + kTiles);
    UntileBand(weight + tile * tile_stride + band * kTileBytes, tile_stride, last - tile,
               rows.data(), kStride);
    for (std::size_t x = 0; x < kBandRows; ++x) {
      const std::size_t row = order[x];
      DequantiseRow(sizes, tile * kTileColumns, last * kTileColumns, rows.data() + row * kStride,
                    bf16 + row * sizes.columns + tile * kTileColumns, [&](std::uint64_t group) {
                      return ScaleValue(scales, group * sizes.rows + band * kBandRows + x, dtype);
                    });
    }
  }
}

class Marlin final : public Scheme {
 public:
  explicit Marlin(std::uint64_t group) : group_(group) {}

  std::string_view name() const override { return "wna16-marlin"; }
  bool Repacks() const override { return true; }
  bool Exact() const override { return true; }
  std::uint64_t RowStep() const override { return kBandRows; }

  base::Status Check(const Matrix& matrix) const override {
    SYNCLINE_TRY(CheckMatrix(matrix));
    const auto multiple = [](std::string_view what, std::uint64_t of,
                             std::uint64_t actual) -> base::Status {
      if (of != 0 && actual % of == 0) return {};
      return Fail(Code::kInvalidArgument,
                  fmt::format("{} are {}, expected a multiple of {}", what, actual, of));
    };
    SYNCLINE_TRY(multiple("columns of 4-bit integers", kTileColumns, matrix.columns));
    SYNCLINE_TRY(multiple("rows of 4-bit integers", kBandRows, matrix.rows()));
    SYNCLINE_TRY(multiple("columns of a group of 4-bit integers", 8, group_));
    if (group_ != 0) {
      SYNCLINE_TRY(multiple("columns of 4-bit integers in groups", group_, matrix.columns));
    }
    if (matrix.activation != Dtype::kBF16 && matrix.activation != Dtype::kF16) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("scales of 4-bit integers are {}, expected BF16 or F16",
                              tensor::Name(matrix.activation)));
    }
    constexpr std::uint64_t kMaxTiles = std::uint64_t{1} << 32;
    const Sizes sizes(matrix, group_);
    if (sizes.tiles >= kMaxTiles / sizes.bands) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("a matrix of {} rows by {} columns, expected fewer than {} tiles of "
                              "{} by {}",
                              sizes.rows, sizes.columns, kMaxTiles, kBandRows, kTileColumns));
    }
    return {};
  }

  std::vector<Slot> Slots(const Matrix& matrix) const override {
    const Sizes sizes(matrix, group_);
    const auto slot = [&](std::string name, Dtype dtype, std::vector<std::uint64_t> load,
                          std::vector<std::uint64_t> runtime) {
      if (matrix.experts != 0) {
        load.insert(load.begin(), matrix.experts);
        runtime.insert(runtime.begin(), matrix.experts);
      }
      Slot made = {std::move(name), {"", dtype, load}, {"", dtype, runtime}};
      made.runtime_bytes = made.runtime.bytes();
      return made;
    };
    std::vector<Slot> slots = {slot("weight_packed", Dtype::kI32, {sizes.rows, sizes.columns / 8},
                                    {sizes.tiles, 2 * sizes.rows}),
                               slot("weight_scale", matrix.activation, {sizes.rows, sizes.groups},
                                    {sizes.groups, sizes.rows})};
    slots[0].block_columns = 8;
    slots[1].block_columns = group_;
    return slots;
  }

  void Process(const Matrix& matrix, MutableSlotViews slots,
               base::ThreadPool& pool) const override {
    const Sizes sizes(matrix, group_);
    const CellTranspose transpose(sizes.bands, sizes.tiles, kTileBytes);
    for (std::uint64_t expert = 0; expert < matrix.count(); ++expert) {
      std::byte* weight = slots[0].data() + expert * sizes.weight_bytes();
      TileBands(sizes, weight, pool);
      transpose.Run(weight, pool);
      ReorderScales(sizes, slots[1].data() + expert * sizes.scale_bytes(), pool,
                    [&](std::uint64_t band, const std::uint16_t* from, std::byte* to) {
                      ForScales(sizes, band, [=](std::uint64_t load, std::uint64_t runtime) {
                        StoreScale(to, runtime, from[load]);
                      });
                    });
    }
  }

  void Restore(const Matrix& matrix, MutableSlotViews slots,
               base::ThreadPool& pool) const override {
    const Sizes sizes(matrix, group_);
    const CellTranspose transpose(sizes.tiles, sizes.bands, kTileBytes);
    for (std::uint64_t expert = 0; expert < matrix.count(); ++expert) {
      std::byte* weight = slots[0].data() + expert * sizes.weight_bytes();
      transpose.Run(weight, pool);
      UntileBands(sizes, weight, pool);
      ReorderScales(sizes, slots[1].data() + expert * sizes.scale_bytes(), pool,
                    [&](std::uint64_t band, const std::uint16_t* from, std::byte* to) {
                      ForScales(sizes, band, [=](std::uint64_t load, std::uint64_t runtime) {
                        StoreScale(to, load, from[runtime]);
                      });
                    });
    }
  }

  void Dequantise(const Matrix& matrix, SlotViews slots, Layout layout, std::uint64_t expert,
                  std::uint64_t first, std::uint64_t last, std::uint16_t* bf16) const override {
    const Sizes sizes(matrix, group_);
    const std::byte* weight = slots[0].data() + expert * sizes.weight_bytes();
    const std::byte* scales = slots[1].data() + expert * sizes.scale_bytes();
    if (layout == Layout::kRuntime) {
      for (std::uint64_t row = first; row < last; row += kBandRows) {
        DequantiseBand(sizes, weight, scales, matrix.activation, row / kBandRows,
                       bf16 + (row - first) * sizes.columns);
      }
      return;
    }
    for (std::uint64_t row = first; row < last; ++row) {
      DequantiseRow(sizes, 0, sizes.columns, weight + row * sizes.row_bytes(),
                    bf16 + (row - first) * sizes.columns, [&](std::uint64_t group) {
                      return ScaleValue(scales, row * sizes.groups + group, matrix.activation);
                    });
    }
  }

 private:
  std::uint64_t group_;  // 0: the whole row
};

}  // namespace

std::shared_ptr<const Scheme> Wna16Marlin(std::uint64_t group) {
  return std::make_shared<Marlin>(group);
}

}  // namespace syncline::quant
