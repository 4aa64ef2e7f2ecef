#include "quant/wna16_marlin.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "quant/marlin_repack.h"
#include "quant/marlin_tiles.h"
#include "quant/matrix_check.h"
#include "tensor/small_floats.h"

namespace syncline::quant {
namespace {

using base::Code;
using base::Fail;
using tensor::Dtype;

float ScaleValue(const std::byte* scales, std::uint64_t number, Dtype dtype) {
  const auto bits = base::Load<std::uint16_t>(scales + number * sizeof(std::uint16_t));
  return dtype == Dtype::kF16 ? tensor::FromF16(bits) : tensor::FromBf16(bits);
}

// Rows are dequantised a chunk at a time.
constexpr std::uint64_t kChunkTiles = 16;
constexpr std::uint64_t kChunkColumns = kChunkTiles * kTileColumns;
constexpr std::uint64_t kSmallestGroup = 8;

// At most a chunk of one row: columns [first, last), `nibbles` and `bf16` from the first on.
template <typename ScaleOf>
void DequantiseChunk(const MarlinSizes& sizes, std::uint64_t first, std::uint64_t last,
                     const std::byte* nibbles, std::uint16_t* bf16, const ScaleOf& scale_of) {
  const std::uint64_t size = sizes.columns / sizes.groups;
  const std::uint64_t begin = first / size;
  const std::uint64_t end = (last - 1) / size + 1;
  std::array<float, kChunkColumns / kSmallestGroup + 1> scales;
  for (std::uint64_t group = begin; group < end; ++group) scales[group - begin] = scale_of(group);
  DequantiseNibbles(nibbles, last - first, {scales.data(), size, first % size}, bf16);
}

// One band out of the runtime layout.
void DequantiseBand(const MarlinSizes& sizes, const std::byte* weight, const std::byte* scales,
                    Dtype dtype, std::uint64_t band, std::uint16_t* bf16) {
  constexpr std::size_t kStride = kChunkTiles * kTileRowBytes;
  std::array<std::byte, kBandRows * kStride> rows;
  const MarlinScaleOrder& order = ScaleOrder(sizes);
  const std::size_t tile_stride = sizes.bands * kTileBytes;
  for (std::uint64_t tile = 0; tile < sizes.tiles; tile += kChunkTiles) {
    const std::uint64_t last = std::min(sizes.tiles, tile + kChunkTiles);
    UntileBand(weight + tile * tile_stride + band * kTileBytes, tile_stride, last - tile,
               rows.data(), kStride);
    for (std::size_t x = 0; x < kBandRows; ++x) {
      const std::size_t row = order[x];
      DequantiseChunk(sizes, tile * kTileColumns, last * kTileColumns, rows.data() + row * kStride,
                      bf16 + row * sizes.columns + tile * kTileColumns, [&](std::uint64_t group) {
                        return ScaleValue(scales, group * sizes.rows + band * kBandRows + x, dtype);
                      });
    }
  }
}

// One row out of the load layout; `scales` are those of the row.
void DequantiseRow(const MarlinSizes& sizes, const std::byte* nibbles, const std::byte* scales,
                   Dtype dtype, std::uint16_t* bf16) {
  for (std::uint64_t column = 0; column < sizes.columns; column += kChunkColumns) {
    DequantiseChunk(sizes, column, std::min(sizes.columns, column + kChunkColumns),
                    nibbles + column / 2, bf16 + column,
                    [&](std::uint64_t group) { return ScaleValue(scales, group, dtype); });
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
    SYNCLINE_TRY(multiple("columns of a group of 4-bit integers", kSmallestGroup, group_));
    if (group_ != 0) {
      SYNCLINE_TRY(multiple("columns of 4-bit integers in groups", group_, matrix.columns));
    }
    if (matrix.activation != Dtype::kBF16 && matrix.activation != Dtype::kF16) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("scales of 4-bit integers are {}, expected BF16 or F16",
                              tensor::Name(matrix.activation)));
    }
    constexpr std::uint64_t kMaxTiles = std::uint64_t{1} << 32;
    const MarlinSizes sizes(matrix, group_);
    if (sizes.tiles >= kMaxTiles / sizes.bands) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("a matrix of {} rows by {} columns, expected fewer than {} tiles of "
                              "{} by {}",
                              sizes.rows, sizes.columns, kMaxTiles, kBandRows, kTileColumns));
    }
    return {};
  }

  std::vector<Slot> Slots(const Matrix& matrix) const override {
    const MarlinSizes sizes(matrix, group_);
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
    Repack(matrix, slots, MarlinRepack::Direction::kToRuntime, pool);
  }
  void Restore(const Matrix& matrix, MutableSlotViews slots,
               base::ThreadPool& pool) const override {
    Repack(matrix, slots, MarlinRepack::Direction::kToLoad, pool);
  }

  void Dequantise(const Matrix& matrix, SlotViews slots, Layout layout, std::uint64_t expert,
                  std::uint64_t first, std::uint64_t last, std::uint16_t* bf16) const override {
    const MarlinSizes sizes(matrix, group_);
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
      DequantiseRow(sizes, weight + row * sizes.row_bytes(),
                    scales + row * sizes.groups * sizeof(std::uint16_t), matrix.activation,
                    bf16 + (row - first) * sizes.columns);
    }
  }

 private:
  void Repack(const Matrix& matrix, MutableSlotViews slots, MarlinRepack::Direction direction,
              base::ThreadPool& pool) const {
    const MarlinSizes sizes(matrix, group_);
    MarlinRepack repack(sizes, direction, pool);
    for (std::uint64_t expert = 0; expert < matrix.count(); ++expert) {
      repack.Run(slots[0].data() + expert * sizes.weight_bytes(),
                 slots[1].data() + expert * sizes.scale_bytes());
    }
  }

  std::uint64_t group_;  // 0: the whole row
};

}  // namespace

std::shared_ptr<const Scheme> Wna16Marlin(std::uint64_t group) {
  return std::make_shared<Marlin>(group);
}

}  // namespace syncline::quant
