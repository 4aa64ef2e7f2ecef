// Vectors of fp32 to bf16 in memory. Compiled once for each vector width, hence no #pragma once.
#if defined(SYNCLINE_QUANT_BF16_ROUND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCLINE_QUANT_BF16_ROUND_INL_H_
#undef SYNCLINE_QUANT_BF16_ROUND_INL_H_
#else
#define SYNCLINE_QUANT_BF16_ROUND_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace syncline::quant::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// To nearest, ties to even.
template <class D>
HWY_INLINE void StoreRounded(D, hn::Vec<D> v, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, D> halves;
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> words;
  const auto u = hn::BitCast(bits, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto odd = hn::And(high, hn::Set(bits, 1));
  const auto up = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(bits, 0x7FFF))));
  // The carry would make a number of some NaNs.
  const auto quiet = hn::Or(high, hn::Set(bits, 0x40));
  const auto rounded = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), quiet, up);
  hn::StoreU(hn::DemoteTo(halves, hn::BitCast(words, rounded)), halves, to);
}

}  // namespace syncline::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
