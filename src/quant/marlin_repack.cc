// The weights of a matrix are N / 64 bands of 64 rows, each K / 16 tiles wide (marlin_tiles.h).
//
//   load       bands, of each the rows, of each row the tiles' 8 bytes
//   between    bands, of each the tiles of 512 bytes
//   runtime    tiles of 16 columns, of each the bands
//
// 1. Load to between: band by band, with a copy of one band.
// 2. Between to runtime: a matrix of bands and tiles is transposed in place (cell_transpose.h).
// 3. The scales are copied in parts during step 1, and then put in order.
// The other way step 2 comes before step 1.
#include "quant/marlin_repack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace syncline::quant {
namespace {

constexpr MarlinScaleOrder kGroupedOrder = [] {
  MarlinScaleOrder order = {};
  for (std::size_t x = 0; x < kBandRows; ++x) {
    order[x] = static_cast<std::uint8_t>(x / 8 + 8 * (x % 8));
  }
  return order;
}();
constexpr MarlinScaleOrder kSingleOrder = [] {
  constexpr std::array<std::uint8_t, 8> kFrom = {0, 1, 8, 9, 16, 17, 24, 25};
  MarlinScaleOrder order = {};
  for (std::size_t x = 0; x < kBandRows; ++x) {
    order[x] = static_cast<std::uint8_t>(x / 32 * 32 + 2 * (x % 32 / 8) + kFrom[x % 8]);
  }
  return order;
}();

// Rows of the copy of a band stand a cache line further apart, else those of many widths would fall
// onto the same few places of the cache.
constexpr std::size_t kGap = 64;

}  // namespace

const MarlinScaleOrder& ScaleOrder(const MarlinSizes& sizes) {
  return sizes.groups == 1 ? kSingleOrder : kGroupedOrder;
}

MarlinRepack::MarlinRepack(const MarlinSizes& sizes, Direction direction, base::ThreadPool& pool)
    : sizes_(sizes),
      direction_(direction),
      pool_(pool),
      transpose_(direction == Direction::kToRuntime ? sizes.bands : sizes.tiles,
                 direction == Direction::kToRuntime ? sizes.tiles : sizes.bands, kTileBytes),
      stride_(sizes.row_bytes() + kGap),
      copies_(std::min<std::uint64_t>(pool.size(), sizes.bands)),
      scales_(sizes.scales()) {
  for (auto& copy : copies_) copy.resize(kBandRows * stride_);
}

void MarlinRepack::Run(std::byte* weight, std::byte* scales) {
  if (direction_ == Direction::kToLoad) transpose_.Run(weight, pool_);
  RunBands(weight, scales);
  if (direction_ == Direction::kToRuntime) transpose_.Run(weight, pool_);
  // A few bands at once, so that those of one group fill whole lines of the cache and more.
  constexpr std::uint64_t kBands = 4;
  (void)pool_.ParallelFor((sizes_.bands + kBands - 1) / kBands, [&](std::size_t i) -> base::Status {
    ReorderScales(i * kBands, std::min(sizes_.bands, (i + 1) * kBands), scales);
    return {};
  });
}

void MarlinRepack::RunBands(std::byte* weight, const std::byte* scales) {
  std::atomic<std::uint64_t> next = 0;
  const std::uint64_t scales_of_band = kBandRows * sizes_.groups;
  (void)pool_.ParallelFor(copies_.size(), [&](std::size_t i) -> base::Status {
    std::byte* const copy = copies_[i].data();
    for (std::uint64_t band = next++; band < sizes_.bands; band = next++) {
      std::memcpy(scales_.data() + band * scales_of_band,
                  scales + band * scales_of_band * sizeof(std::uint16_t),
                  scales_of_band * sizeof(std::uint16_t));
      std::byte* const at = weight + band * sizes_.band_bytes();
      const std::size_t bytes = sizes_.row_bytes();
      if (direction_ == Direction::kToRuntime) {
        for (std::size_t row = 0; row < kBandRows; ++row) {
          std::memcpy(copy + row * stride_, at + row * bytes, bytes);
        }
        TileBand(copy, stride_, sizes_.tiles, at, kTileBytes);
      } else {
        UntileBand(at, kTileBytes, sizes_.tiles, copy, stride_);
        for (std::size_t row = 0; row < kBandRows; ++row) {
          std::memcpy(at + row * bytes, copy + row * stride_, bytes);
        }
      }
    }
    return {};
  });
}

void MarlinRepack::ReorderScales(std::uint64_t first, std::uint64_t last, std::byte* scales) const {
  // Calls move(load, runtime) with the number of each scale in both layouts.
  const auto for_each = [&](const auto& move) {
    const MarlinScaleOrder order = ScaleOrder(sizes_);
    const std::uint64_t groups = sizes_.groups;
    for (std::uint64_t group = 0; group < groups; ++group) {
      for (std::uint64_t band = first; band < last; ++band) {
        const std::uint64_t load = band * kBandRows * groups + group;
        const std::uint64_t runtime = group * sizes_.rows + band * kBandRows;
        for (std::size_t x = 0; x < kBandRows; ++x) move(load + order[x] * groups, runtime + x);
      }
    }
  };
  const std::uint16_t* const copy = scales_.data();
  const auto store = [scales](std::uint64_t number, std::uint16_t scale) {
    base::Store(scales + number * sizeof(scale), scale);
  };
  if (direction_ == Direction::kToRuntime) {
    for_each([=](std::uint64_t load, std::uint64_t runtime) { store(runtime, copy[load]); });
  } else {
    for_each([=](std::uint64_t load, std::uint64_t runtime) { store(load, copy[runtime]); });
  }
}

}  // namespace syncline::quant
