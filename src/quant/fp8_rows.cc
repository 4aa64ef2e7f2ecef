#include "quant/fp8_rows.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/fp8_rows.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

#include "quant/bf16_round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::quant::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The value of each element, without arithmetic on subnormal floats (which may be slow, or switched
// off).
template <class D>
HWY_INLINE hn::Vec<D> Decode(D d, const std::uint8_t* e4m3) {
  const hn::Rebind<std::uint8_t, D> bytes;
  const hn::RebindToUnsigned<D> bits;
  const auto all = hn::PromoteTo(bits, hn::LoadU(bytes, e4m3));
  const auto magnitude = hn::And(all, hn::Set(bits, 0x7F));
  const auto sign = hn::ShiftLeft<24>(hn::And(all, hn::Set(bits, 0x80)));
  // The exponents of e4m3 and float differ by 120. Of a subnormal the bits are taken as the
  // mantissa of a number that is 2^-6 too large.
  const auto wide = hn::ShiftLeft<20>(magnitude);
  const auto normal = hn::BitCast(d, hn::Add(wide, hn::Set(bits, 120U << 23)));
  const auto subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(wide, hn::Set(bits, 121U << 23))), hn::Set(d, 0x1p-6F));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(bits, 8)));
  const auto is_nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(bits, 0x7F)));
  auto value = hn::IfThenElse(is_subnormal, subnormal, normal);
  value = hn::IfThenElse(is_nan, hn::BitCast(d, hn::Set(bits, 0x7FC0'0000U)), value);
  return hn::Or(value, hn::BitCast(d, sign));
}

template <class D>
HWY_INLINE void Step(D d, const std::uint8_t* e4m3, hn::Vec<D> scale, std::uint16_t* bf16) {
  StoreRounded(d, hn::Mul(Decode(d, e4m3), scale), bf16);
}

void Row(const std::uint8_t* e4m3, const float* scales, std::size_t columns, std::uint16_t* bf16) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  for (std::size_t first = 0; first < columns; first += kFp8Block) {
    const std::size_t last = std::min<std::size_t>(columns, first + kFp8Block);
    const float scale = scales[first / kFp8Block];
    std::size_t i = first;
    for (; i + hn::Lanes(d) <= last; i += hn::Lanes(d)) {
      Step(d, e4m3 + i, hn::Set(d, scale), bf16 + i);
    }
    for (; i < last; ++i) Step(one, e4m3 + i, hn::Set(one, scale), bf16 + i);
  }
}

}  // namespace syncline::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::quant {
namespace {

HWY_EXPORT(Row);

}  // namespace

void DequantiseFp8Row(const std::uint8_t* e4m3, const float* scales, std::size_t columns,
                      std::uint16_t* bf16) {
  HWY_DYNAMIC_DISPATCH(Row)(e4m3, scales, columns, bf16);
}

}  // namespace syncline::quant
#endif  // HWY_ONCE
