#include "model/cpu_rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu_rotary.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

#include "model/cpu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

template <typename T>
HWY_INLINE void Rotate(T* heads, std::size_t count, std::size_t head_size, const float* cosine,
                       const float* sine) {
  const std::size_t half = head_size / 2;
  for (std::size_t head = 0; head < count; ++head) {
    T* low = heads + head * head_size;
    T* high = low + half;
    ForLanes(half, [=](auto d, std::size_t i) HWY_ATTR {
      const auto a = LoadFloats(d, low + i);
      const auto b = LoadFloats(d, high + i);
      const auto c = hn::LoadU(d, cosine + i);
      const auto s = hn::LoadU(d, sine + i);
      StoreFloats(d, Round<T>(d, hn::NegMulAdd(b, s, hn::Mul(a, c))), low + i);
      StoreFloats(d, Round<T>(d, hn::MulAdd(a, s, hn::Mul(b, c))), high + i);
    });
  }
}

void RotateBf16(Bf16* heads, std::size_t count, std::size_t head_size, const float* cosine,
                const float* sine) {
  Rotate(heads, count, head_size, cosine, sine);
}

void RotateFloat(float* heads, std::size_t count, std::size_t head_size, const float* cosine,
                 const float* sine) {
  Rotate(heads, count, head_size, cosine, sine);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::model {
namespace {

HWY_EXPORT(RotateBf16);
HWY_EXPORT(RotateFloat);

}  // namespace

void RotateHeads(Bf16* heads, std::size_t count, std::size_t head_size, const float* cosine,
                 const float* sine) {
  HWY_DYNAMIC_DISPATCH(RotateBf16)(heads, count, head_size, cosine, sine);
}

void RotateHeads(float* heads, std::size_t count, std::size_t head_size, const float* cosine,
                 const float* sine) {
  HWY_DYNAMIC_DISPATCH(RotateFloat)(heads, count, head_size, cosine, sine);
}

}  // namespace syncline::model
#endif  // HWY_ONCE
