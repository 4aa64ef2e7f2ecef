#include "model/cpu_norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu_norm.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

#include "model/cpu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

// x += add, for one vector; returns `squares` + x².
template <typename T, class D>
HWY_INLINE hn::Vec<D> AddStep(D d, float* x, const T* add, hn::Vec<D> squares) {
  auto sum = LoadFloats(d, x);
  if (add != nullptr) {
    sum = hn::Add(sum, LoadFloats(d, add));
    StoreFloats(d, sum, x);
  }
  return hn::MulAdd(sum, sum, squares);
}

template <typename T>
HWY_INLINE void AddAndNorm(float* x, const T* add, const T* weight, T* out, std::size_t width,
                           float epsilon) {
  const Lanes d;
  const OneLane one;
  auto squares = hn::Zero(d);
  auto last_squares = hn::Zero(one);
  std::size_t i = 0;
  const auto add_at = [&] { return add == nullptr ? nullptr : add + i; };
  for (; i + hn::Lanes(d) <= width; i += hn::Lanes(d)) {
    squares = AddStep(d, x + i, add_at(), squares);
  }
  for (; i < width; ++i) last_squares = AddStep(one, x + i, add_at(), last_squares);
  const float sum = hn::GetLane(hn::SumOfLanes(d, squares)) + hn::GetLane(last_squares);
  const float scale = 1.0F / std::sqrt(sum / static_cast<float>(width) + epsilon);
  ForLanes(width, [=](auto lanes, std::size_t at) HWY_ATTR {
    const auto normed = hn::Mul(LoadFloats(lanes, x + at), hn::Set(lanes, scale));
    StoreFloats(lanes, Round<T>(lanes, hn::Mul(LoadFloats(lanes, weight + at), normed)), out + at);
  });
}

void AddAndNormBf16(float* x, const Bf16* add, const Bf16* weight, Bf16* out, std::size_t width,
                    float epsilon) {
  AddAndNorm(x, add, weight, out, width, epsilon);
}

void AddAndNormFloat(float* x, const float* add, const float* weight, float* out, std::size_t width,
                     float epsilon) {
  AddAndNorm(x, add, weight, out, width, epsilon);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::model {
namespace {

HWY_EXPORT(AddAndNormBf16);
HWY_EXPORT(AddAndNormFloat);

}  // namespace

void AddAndNormRow(float* x, const Bf16* add, const Bf16* weight, Bf16* out, std::size_t width,
                   float epsilon) {
  HWY_DYNAMIC_DISPATCH(AddAndNormBf16)(x, add, weight, out, width, epsilon);
}

void AddAndNormRow(float* x, const float* add, const float* weight, float* out, std::size_t width,
                   float epsilon) {
  HWY_DYNAMIC_DISPATCH(AddAndNormFloat)(x, add, weight, out, width, epsilon);
}

}  // namespace syncline::model
#endif  // HWY_ONCE
