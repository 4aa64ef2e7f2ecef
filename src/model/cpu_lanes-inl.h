// Vectors of fp32 from and to memory of type Bf16 or float. Compiled once for each vector width,
// hence no #pragma once.
#if defined(SYNCLINE_MODEL_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCLINE_MODEL_CPU_LANES_INL_H_
#undef SYNCLINE_MODEL_CPU_LANES_INL_H_
#else
#define SYNCLINE_MODEL_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "model/cpu_types.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As many lanes as there are, and a single one for what is left over at the end of a row.
using Lanes = hn::ScalableTag<float>;
using OneLane = hn::CappedTag<float, 1>;

// Not called Load and Store: argument-dependent lookup would prefer Highway's functions of these
// names, which ask for aligned memory.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const Bf16* from) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, from))));
}

// `v` rounded to T.
template <typename T, class D>
HWY_INLINE hn::Vec<D> Round(D d, hn::Vec<D> v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return v;
  } else {
    const hn::RebindToUnsigned<D> bits;
    const auto u = hn::BitCast(bits, v);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(bits, 1));
    const auto up = hn::Add(u, hn::Add(odd, hn::Set(bits, 0x7fff)));
    const auto rounded = hn::BitCast(d, hn::And(up, hn::Set(bits, 0xffff'0000U)));
    // The carry would make a number of some NaNs.
    const auto nan = hn::BitCast(d, hn::Set(bits, 0x7fc0'0000U));
    return hn::IfThenElse(hn::IsNaN(v), nan, rounded);
  }
}

// `v` holds values that T can represent.
template <class D>
HWY_INLINE void StoreFloats(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE void StoreFloats(D, hn::Vec<D> v, Bf16* to) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> wide;
  const auto high = hn::ShiftRight<16>(hn::BitCast(bits, v));
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(wide, high)), narrow, to);
}

// Calls step(d, i) until all of [0, n) is done, `d` telling how many elements from i on.
template <class Step>
HWY_INLINE void ForLanes(std::size_t n, Step step) {
  std::size_t i = 0;
  for (; i + hn::Lanes(Lanes()) <= n; i += hn::Lanes(Lanes())) step(Lanes(), i);
  for (; i < n; ++i) step(OneLane(), i);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SYNCLINE_MODEL_CPU_LANES_INL_H_
