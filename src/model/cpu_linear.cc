#include "model/cpu_linear.h"

#include <algorithm>
#include <cstdint>

#include "model/cpu_bf16_pairs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu_linear.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

#include "model/cpu_dot-inl.h"
#include "model/cpu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

// Stores up to four outputs of one row.
template <typename Out>
HWY_INLINE void StoreOutputs(hn::Vec<Quad> sums, const Bf16* bias, std::size_t count, Out* out) {
  const Quad d;
  if (HWY_LIKELY(count == 4)) {
    if (bias != nullptr) sums = hn::Add(sums, LoadFloats(d, bias));
    return StoreFloats(d, Round<Out>(d, sums), out);
  }
  float values[4];
  hn::StoreU(sums, d, values);
  for (std::size_t i = 0; i < count; ++i) {
    const OneLane one;
    auto value = hn::Set(one, values[i]);
    if (bias != nullptr) value = hn::Add(value, LoadFloats(one, bias + i));
    StoreFloats(one, Round<Out>(one, value), out + i);
  }
}

// Weights are read four rows at a time, an order that the processor's own prefetching does not
// serve well. So they are fetched in the order of memory, at least this many bytes ahead and at
// least a unit, into the second cache: kLines lines in each step of a tile.
constexpr std::size_t kAhead = 8192;
constexpr std::size_t kLine = 64;

template <class Products, std::size_t kLines, typename Out>
HWY_INLINE void LinearUnit(const LinearProblem& p, std::size_t unit, Out* out) {
  const std::size_t n = 4 * unit;
  const std::size_t count = std::min<std::size_t>(4, p.outputs - n);
  const Bf16* weight[4];
  for (std::size_t i = 0; i < 4; ++i) {
    weight[i] = p.weight + (n + std::min(i, count - 1)) * p.inputs;
  }
  const std::size_t unit_bytes = 4 * p.inputs * sizeof(Bf16);
  const std::size_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t m = tile * kTileRows;
    // An address only: it may lie beyond the weights.
    auto next = reinterpret_cast<std::uintptr_t>(weight[0]) + std::max(kAhead, unit_bytes) +
                unit_bytes * tile / tiles;
    const auto ahead = [&next](std::size_t) HWY_ATTR {
      HWY_UNROLL(4)
      for (std::size_t i = 0; i < kLines; ++i, next += kLine) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): it may lie beyond the memory it began in
        __builtin_prefetch(reinterpret_cast<const void*>(next), /*rw=*/0, /*locality=*/2);
      }
    };
    const auto store = [&](std::size_t row, hn::Vec<Quad> sums) HWY_ATTR {
      StoreOutputs(sums, p.bias == nullptr ? nullptr : p.bias + n, count,
                   out + (m + row) * p.stride + n);
    };
    DotRows<Products>(std::min(kTileRows, p.rows - m), p.x + m * p.inputs, p.inputs, weight,
                      p.inputs, ahead, store);
  }
}

template <class Products, typename Out>
void UnitsOfRows(const LinearProblem& problem, std::size_t first, std::size_t last, Out* out) {
  // A step reads a vector of each of the four rows. Several tiles share the lines.
  constexpr std::size_t kStepLines = 4 * Products::kElements * sizeof(Bf16) / kLine;
  const std::size_t tiles = (problem.rows + kTileRows - 1) / kTileRows;
  for (std::size_t unit = first; unit < last; ++unit) {
    if (tiles == 1) {
      LinearUnit<Products, kStepLines>(problem, unit, out);
    } else if (tiles < 4) {
      LinearUnit<Products, (kStepLines + 1) / 2>(problem, unit, out);
    } else {
      LinearUnit<Products, 1>(problem, unit, out);
    }
  }
}

// So many rows at a time stay in the second cache while all weights pass by.
constexpr std::size_t kBlockRows = 64;

template <class Products, typename Out>
void Units(const LinearProblem& problem, std::size_t first, std::size_t last, Out* out) {
  for (std::size_t row = 0; row < problem.rows; row += kBlockRows) {
    LinearProblem block = problem;
    block.x += row * problem.inputs;
    block.rows = std::min(kBlockRows, problem.rows - row);
    UnitsOfRows<Products>(block, first, last, out + row * problem.stride);
  }
}

template <typename Out>
void ChooseProducts(LinearProblem problem, std::size_t first, std::size_t last, Out* out) {
  if (problem.stride == 0) problem.stride = problem.outputs;
#if HWY_TARGET == HWY_AVX3
  if (HasBf16Pairs()) return Units<Bf16PairProducts>(problem, first, last, out);
#endif
  Units<Bf16Products>(problem, first, last, out);
}

void LinearToBf16(const LinearProblem& problem, std::size_t first, std::size_t last, Bf16* out) {
  ChooseProducts(problem, first, last, out);
}

void LinearToFloat(const LinearProblem& problem, std::size_t first, std::size_t last, float* out) {
  ChooseProducts(problem, first, last, out);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::model {
namespace {

HWY_EXPORT(LinearToBf16);
HWY_EXPORT(LinearToFloat);

}  // namespace

void LinearOutputs(const LinearProblem& problem, std::size_t first, std::size_t last, Bf16* out) {
  HWY_DYNAMIC_DISPATCH(LinearToBf16)(problem, first, last, out);
}

void LinearOutputs(const LinearProblem& problem, std::size_t first, std::size_t last, float* out) {
  HWY_DYNAMIC_DISPATCH(LinearToFloat)(problem, first, last, out);
}

}  // namespace syncline::model
#endif  // HWY_ONCE
