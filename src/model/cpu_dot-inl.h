// Dot products of a few rows with four others, the inner loop of matrix products and of attention
// scores. Compiled once for each vector width, hence no #pragma once.
//
// Both rows are read along their length: a vector of partial sums for each pair, added up at the
// end. So neither matrix has to be packed, and a product's value does not depend on how many rows
// are computed beside it.
#if defined(SYNCLINE_MODEL_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCLINE_MODEL_CPU_DOT_INL_H_
#undef SYNCLINE_MODEL_CPU_DOT_INL_H_
#else
#define SYNCLINE_MODEL_CPU_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

#include "model/cpu_bf16_pairs.h"
#include "model/cpu_lanes-inl.h"
#include "model/cpu_types.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

// Rows of the first matrix that are computed at once: what the registers hold.
constexpr std::size_t kTileRows = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 2 : 4;
using Quad = hn::FixedTag<float, 4>;

// How rows of T are multiplied: an operand is one vector of memory, kElements elements.
struct FloatProducts {
  using T = float;
  using Operand = hn::Vec<Lanes>;
  static constexpr std::size_t kElements = hn::MaxLanes(Lanes());
  static HWY_INLINE Operand Load(const T* from) { return hn::LoadU(Lanes(), from); }
  static HWY_INLINE hn::Vec<Lanes> MulAdd(Operand a, Operand b, hn::Vec<Lanes> sum) {
    return hn::MulAdd(a, b, sum);
  }
};

// A bf16 is the upper half of an fp32: pairs are taken apart by a shift and a mask.
struct Bf16Products {
  using T = Bf16;
  struct Operand {
    hn::Vec<Lanes> even, odd;
  };
  static constexpr std::size_t kElements = 2 * hn::MaxLanes(Lanes());
  static HWY_INLINE Operand Load(const T* from) {
    const hn::RebindToUnsigned<Lanes> bits;
    const hn::Repartition<std::uint16_t, Lanes> memory;
    const auto pairs = hn::BitCast(bits, hn::LoadU(memory, from));
    return {hn::BitCast(Lanes(), hn::ShiftLeft<16>(pairs)),
            hn::BitCast(Lanes(), hn::And(pairs, hn::Set(bits, 0xffff'0000U)))};
  }
  static HWY_INLINE hn::Vec<Lanes> MulAdd(const Operand& a, const Operand& b, hn::Vec<Lanes> sum) {
    return hn::MulAdd(a.odd, b.odd, hn::MulAdd(a.even, b.even, sum));
  }
};

#if HWY_TARGET == HWY_AVX3
// For processors that HasBf16Pairs().
struct Bf16PairProducts {
  using T = Bf16;
  using Operand = __m512i;
  static constexpr std::size_t kElements = 32;
  static HWY_INLINE Operand Load(const T* from) { return _mm512_loadu_si512(from); }
  static HWY_INLINE hn::Vec<Lanes> MulAdd(Operand a, Operand b, hn::Vec<Lanes> sum) {
    // Not the intrinsic: that belongs to another target than Highway's AVX3, whose functions it
    // could not be inlined into.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a), "v"(b));
    return sum;
  }
};
#endif

// The sum of the vector's blocks of four lanes.
template <class D>
HWY_INLINE hn::Vec<Quad> SumBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Lane i of the result is the sum over vector i.
HWY_INLINE hn::Vec<Quad> SumEach(const hn::Vec<Lanes>* v) {
  const Lanes d;
  const hn::Repartition<double, Lanes> pairs;
  const auto a = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const auto b = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto a_pairs = hn::BitCast(pairs, a);
  const auto b_pairs = hn::BitCast(pairs, b);
  return SumBlocks(d, hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, a_pairs, b_pairs)),
                              hn::BitCast(d, hn::InterleaveUpper(pairs, a_pairs, b_pairs))));
}

template <class Products, std::size_t kRows, class Load>
HWY_INLINE void AddProducts(Load load, const typename Products::T* x, std::size_t stride,
                            const typename Products::T* const (&y)[4], std::size_t k,
                            hn::Vec<Lanes> (&sums)[kRows][4]) {
  typename Products::Operand rows[kRows];
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kRows; ++m) rows[m] = load(x + m * stride + k);
  HWY_UNROLL(4)
  for (std::size_t n = 0; n < 4; ++n) {
    const auto column = load(y[n] + k);
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kRows; ++m) {
      sums[m][n] = Products::MulAdd(rows[m], column, sums[m][n]);
    }
  }
}

// Calls store(m, quad) for each row m of `x` ([kRows, length], `stride` elements apart), the quad
// holding its dot products with the four rows `y`. `ahead(k)` is called once for each step of
// Products::kElements elements.
template <class Products, std::size_t kRows, class Ahead, class Store>
HWY_INLINE void DotTile(const typename Products::T* x, std::size_t stride,
                        const typename Products::T* const (&y)[4], std::size_t length, Ahead ahead,
                        Store store) {
  using T = typename Products::T;
  hn::Vec<Lanes> sums[kRows][4];
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kRows; ++m) {
    HWY_UNROLL(4)
    for (std::size_t n = 0; n < 4; ++n) sums[m][n] = hn::Zero(Lanes());
  }
  std::size_t k = 0;
  for (; k + Products::kElements <= length; k += Products::kElements) {
    ahead(k);
    AddProducts<Products, kRows>([](const T* from) HWY_ATTR { return Products::Load(from); }, x,
                                 stride, y, k, sums);
  }
  if (k < length) {
    const auto load_rest = [bytes = (length - k) * sizeof(T)](const T* from) HWY_ATTR {
      T rest[Products::kElements] = {};
      std::memcpy(rest, from, bytes);
      return Products::Load(rest);
    };
    AddProducts<Products, kRows>(load_rest, x, stride, y, k, sums);
  }
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kRows; ++m) store(m, SumEach(sums[m]));
}

// DotTile for `rows` rows, 1 to kTileRows.
template <class Products, std::size_t kRows = kTileRows, class Ahead, class Store>
HWY_INLINE void DotRows(std::size_t rows, const typename Products::T* x, std::size_t stride,
                        const typename Products::T* const (&y)[4], std::size_t length, Ahead ahead,
                        Store store) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return DotRows<Products, kRows - 1>(rows, x, stride, y, length, ahead, store);
    }
  }
  DotTile<Products, kRows>(x, stride, y, length, ahead, store);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SYNCLINE_MODEL_CPU_DOT_INL_H_
