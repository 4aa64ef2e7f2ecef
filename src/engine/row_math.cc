#include "engine/row_math.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/row_math.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width

// after it
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace syncline::engine::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Up to a full vector; lanes beyond `count` hold `fill`.
template <class D>
hn::Vec<D> LoadUpTo(D d, const float* from, std::size_t count, float fill) {
  if (count >= hn::Lanes(d)) return hn::LoadU(d, from);
  const auto mask = hn::FirstN(d, count);
  return hn::IfThenElse(mask, hn::MaskedLoad(mask, d, from), hn::Set(d, fill));
}

float MaxOf(const float* row, std::size_t size) {
  const hn::ScalableTag<float> d;
  const float lowest = -std::numeric_limits<float>::infinity();
  auto best = hn::Set(d, lowest);
  for (std::size_t i = 0; i < size; i += hn::Lanes(d)) {
    const auto value = LoadUpTo(d, row + i, size - i, lowest);
    best = hn::IfThenElse(hn::Gt(value, best), value, best);  // false for NaN
  }
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

std::size_t ArgMax(const float* row, std::size_t size) {
  const float best = MaxOf(row, size);
  const float* found = std::find(row, row + size, best);
  return found == row + size ? 0 : static_cast<std::size_t>(found - row);
}

// exp(value - shift) with NaN as 0.
template <class D>
hn::Vec<D> ShiftedExp(D d, hn::Vec<D> value, hn::Vec<D> shift) {
  const auto power = hn::Exp(d, hn::Sub(value, shift));
  return hn::IfThenElseZero(hn::Eq(value, value), power);
}

double SumOfExp(const float* row, std::size_t size, float shift) {
  const hn::ScalableTag<float> d;
  const float lowest = -std::numeric_limits<float>::infinity();
  const auto shifts = hn::Set(d, shift);
  double total = 0;
  for (std::size_t begin = 0; begin < size; begin += kExpBlock) {
    const std::size_t end = std::min(size, begin + kExpBlock);
    auto sum = hn::Zero(d);
    for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
      sum = hn::Add(sum, ShiftedExp(d, LoadUpTo(d, row + i, end - i, lowest), shifts));
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  return total;
}

void ExpInBlocks(const float* row, std::size_t size, float shift, float* out, double* block_sums) {
  const hn::ScalableTag<float> d;
  const float lowest = -std::numeric_limits<float>::infinity();
  const auto shifts = hn::Set(d, shift);
  for (std::size_t begin = 0; begin < size; begin += kExpBlock) {
    const std::size_t end = std::min(size, begin + kExpBlock);
    auto sum = hn::Zero(d);
    for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
      const auto power = ShiftedExp(d, LoadUpTo(d, row + i, end - i, lowest), shifts);
      sum = hn::Add(sum, power);
      if (end - i >= hn::Lanes(d)) {
        hn::StoreU(power, d, out + i);
      } else {
        hn::BlendedStore(power, hn::FirstN(d, end - i), d, out + i);
      }
    }
    *block_sums++ = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace syncline::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::engine {

HWY_EXPORT(ArgMax);
HWY_EXPORT(SumOfExp);
HWY_EXPORT(ExpInBlocks);

std::size_t ArgMax(std::span<const float> row) {
  return HWY_DYNAMIC_DISPATCH(ArgMax)(row.data(), row.size());
}

double SumOfExp(std::span<const float> row, float shift) {
  return HWY_DYNAMIC_DISPATCH(SumOfExp)(row.data(), row.size(), shift);
}

void ExpInBlocks(std::span<const float> row, float shift, std::span<float> out,
                 std::span<double> block_sums) {
  HWY_DYNAMIC_DISPATCH(ExpInBlocks)(row.data(), row.size(), shift, out.data(), block_sums.data());
}

void Scale(std::span<float> row, float factor) {
  for (float& value : row) value *= factor;
}

}  // namespace syncline::engine
#endif
