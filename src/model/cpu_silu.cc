#include "model/cpu_silu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu_silu.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "model/cpu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

template <typename T>
HWY_INLINE void SiluAndMultiply(const T* gate, const T* up, T* out, std::size_t width) {
  ForLanes(width, [=](auto d, std::size_t i) HWY_ATTR {
    const auto x = LoadFloats(d, gate + i);
    // exp(-|x|) cannot overflow: x / (1 + exp(-x)) = x · exp(x) / (1 + exp(x)).
    const auto small = hn::Exp(d, hn::Neg(hn::Abs(x)));
    const auto above = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(x, small), x);
    const auto silu = hn::Div(above, hn::Add(hn::Set(d, 1.0F), small));
    StoreFloats(d, Round<T>(d, hn::Mul(Round<T>(d, silu), LoadFloats(d, up + i))), out + i);
  });
}

void SiluBf16(const Bf16* gate, const Bf16* up, Bf16* out, std::size_t width) {
  SiluAndMultiply(gate, up, out, width);
}

void SiluFloat(const float* gate, const float* up, float* out, std::size_t width) {
  SiluAndMultiply(gate, up, out, width);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::model {
namespace {

HWY_EXPORT(SiluBf16);
HWY_EXPORT(SiluFloat);

}  // namespace

void SiluAndMultiplyRow(const Bf16* gate, const Bf16* up, Bf16* out, std::size_t width) {
  HWY_DYNAMIC_DISPATCH(SiluBf16)(gate, up, out, width);
}

void SiluAndMultiplyRow(const float* gate, const float* up, float* out, std::size_t width) {
  HWY_DYNAMIC_DISPATCH(SiluFloat)(gate, up, out, width);
}

}  // namespace syncline::model
#endif  // HWY_ONCE
