#include "quant/fp8_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>

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

void RowByRow(const std::uint8_t* e4m3, std::size_t rows, std::size_t stride, const float* scales,
              std::size_t columns, std::uint16_t* bf16, std::size_t bf16_stride) {
  for (std::size_t row = 0; row < rows; ++row) {
    Row(e4m3 + row * stride, scales, columns, bf16 + row * bf16_stride);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Of one scale: the values of the 128 magnitudes. Two lookups of 64 and a blend take the place of
// decoding, multiplying and rounding.
struct alignas(64) Table {
  std::uint16_t values[128];
};

HWY_INLINE void MakeTable(float scale, Table& table) {
  static const auto kMagnitudes = [] {
    std::array<std::uint8_t, 128> all;
    std::iota(all.begin(), all.end(), std::uint8_t{0});
    return all;
  }();
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i < kMagnitudes.size(); i += hn::Lanes(d)) {
    Step(d, kMagnitudes.data() + i, hn::Set(d, scale), table.values + i);
  }
}

// The values of 32 elements.
HWY_INLINE __m512i LookUp(__m256i e4m3, const Table& table) {
  const auto part = [&](std::size_t i)
                        HWY_ATTR { return _mm512_load_si512(table.values + 32 * i); };
  const __m512i all = _mm512_cvtepu8_epi16(e4m3);
  const __m512i low = _mm512_permutex2var_epi16(part(0), all, part(1));
  const __m512i high = _mm512_permutex2var_epi16(part(2), all, part(3));
  const __mmask32 is_high = _mm512_test_epi16_mask(all, _mm512_set1_epi16(0x40));
  const __m512i sign =
      _mm512_and_si512(_mm512_slli_epi16(all, 8), _mm512_set1_epi16(std::int16_t{-0x8000}));
  return _mm512_xor_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
}

HWY_INLINE void LookUpBlock(const std::uint8_t* e4m3, std::size_t columns, const Table& table,
                            std::uint16_t* bf16) {
  std::size_t i = 0;
  for (; i + 32 <= columns; i += 32) {
    const auto* from = reinterpret_cast<const __m256i*>(e4m3 + i);
    _mm512_storeu_si512(bf16 + i, LookUp(_mm256_loadu_si256(from), table));
  }
  if (i == columns) return;
  const auto rest = static_cast<__mmask32>((1ULL << (columns - i)) - 1);
  _mm512_mask_storeu_epi16(bf16 + i, rest, LookUp(_mm256_maskz_loadu_epi8(rest, e4m3 + i), table));
}

void Rows(const std::uint8_t* e4m3, std::size_t rows, std::size_t stride, const float* scales,
          std::size_t columns, std::uint16_t* bf16, std::size_t bf16_stride) {
  constexpr std::size_t kTables = 32;
  constexpr std::size_t kWorthATable = 4;  // rows
  Table tables[kTables];
  for (std::size_t first = 0; first < columns; first += kTables * kFp8Block) {
    const std::size_t count = std::min<std::size_t>(kTables * kFp8Block, columns - first);
    const std::span own(scales + first / kFp8Block, (count + kFp8Block - 1) / kFp8Block);
    // The sign of what is no number is not that of a product.
    const bool is_finite = std::ranges::all_of(own, [](float s) { return std::isfinite(s); });
    if (rows < kWorthATable || !is_finite) {
      RowByRow(e4m3 + first, rows, stride, own.data(), count, bf16 + first, bf16_stride);
      continue;
    }
    for (std::size_t i = 0; i < own.size(); ++i) MakeTable(own[i], tables[i]);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint8_t* const from = e4m3 + row * stride + first;
      std::uint16_t* const to = bf16 + row * bf16_stride + first;
      for (std::size_t i = 0; i < own.size(); ++i) {
        const std::size_t column = i * kFp8Block;
        LookUpBlock(from + column, std::min<std::size_t>(kFp8Block, count - column), tables[i],
                    to + column);
      }
    }
  }
}

#else

void Rows(const std::uint8_t* e4m3, std::size_t rows, std::size_t stride, const float* scales,
          std::size_t columns, std::uint16_t* bf16, std::size_t bf16_stride) {
  RowByRow(e4m3, rows, stride, scales, columns, bf16, bf16_stride);
}

#endif

}  // namespace syncline::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::quant {
namespace {

HWY_EXPORT(Row);
HWY_EXPORT(Rows);

}  // namespace

void DequantiseFp8Row(const std::uint8_t* e4m3, const float* scales, std::size_t columns,
                      std::uint16_t* bf16) {
  HWY_DYNAMIC_DISPATCH(Row)(e4m3, scales, columns, bf16);
}

void DequantiseFp8Rows(const std::uint8_t* e4m3, std::size_t rows, std::size_t stride,
                       const float* scales, std::size_t columns, std::uint16_t* bf16,
                       std::size_t bf16_stride) {
  HWY_DYNAMIC_DISPATCH(Rows)(e4m3, rows, stride, scales, columns, bf16, bf16_stride);
}

}  // namespace syncline::quant
#endif  // HWY_ONCE
