#include "model/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/cpu_bf16_pairs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/cpu_attention.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "model/cpu_dot-inl.h"
#include "model/cpu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::model::HWY_NAMESPACE {

// Scores of a few heads, then the weights that follow from them.
using Scores = float[kTileRows][kAttentionPart];

// A few heads of a part: what the registers hold.
template <typename T>
struct Heads {
  const AttentionPart<T>& part;
  std::size_t first;
  std::size_t count;  // up to kTileRows

  // Tokens that head `first` + i sees.
  std::size_t Tokens(std::size_t i) const {
    return std::min(kAttentionPart, part.tokens + (first + i) / part.group);
  }
  std::size_t MostTokens() const { return Tokens(count - 1); }

  std::size_t Offset(std::size_t token) const {
    return (std::size_t{part.blocks[token / kKvBlock]} * kKvBlock + token % kKvBlock) *
           part.slot_stride;
  }
};

template <class Products, typename T>
HWY_INLINE void Score(const Heads<T>& heads, BlockFetcher& next, Scores& scores) {
  const Quad quad;
  const AttentionPart<T>& part = heads.part;
  const auto scale = hn::Set(quad, part.scale);
  const T* query = part.query + heads.first * part.head_size;
  const std::size_t tokens = heads.MostTokens();
  for (std::size_t t = 0; t < tokens; t += 4) {
    const T* keys[4];
    for (std::size_t i = 0; i < 4; ++i) {
      keys[i] = part.keys + heads.Offset(std::min(t + i, tokens - 1));
      next.Step();
    }
    const auto store = [&](std::size_t row, hn::Vec<Quad> sums)
                           HWY_ATTR { hn::StoreU(hn::Mul(sums, scale), quad, scores[row] + t); };
    DotRows<Products>(
        heads.count, query, part.head_size, keys, part.head_size, [](std::size_t) HWY_ATTR {},
        store);
  }
}

// Replaces the scores of `tokens` tokens by exp(score - highest), and by 0 up to `end` and the
// vector's end.
HWY_INLINE void Weigh(float* scores, std::size_t tokens, std::size_t end, float& highest,
                      float& sum) {
  const Lanes d;
  const std::size_t padded = hwy::RoundUpTo(end, hn::Lanes(d));
  std::fill(scores + tokens, scores + padded, -std::numeric_limits<float>::infinity());
  auto maxima = hn::LoadU(d, scores);
  for (std::size_t t = hn::Lanes(d); t < padded; t += hn::Lanes(d)) {
    maxima = hn::Max(maxima, hn::LoadU(d, scores + t));
  }
  const auto maximum = hn::MaxOfLanes(d, maxima);
  auto sums = hn::Zero(d);
  for (std::size_t t = 0; t < padded; t += hn::Lanes(d)) {
    const auto weights = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + t), maximum));
    hn::StoreU(weights, d, scores + t);
    sums = hn::Add(sums, weights);
  }
  highest = hn::GetLane(maximum);
  sum = hn::GetLane(hn::SumOfLanes(d, sums));
}

// Columns [column, column + kVectors · lanes of D) of the mix of values.
template <std::size_t kHeads, std::size_t kVectors, class D, typename T>
HWY_INLINE void MixColumns(D d, const Heads<T>& heads, const Scores& weights, std::size_t column,
                           BlockFetcher& next, float* mixed) {
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t tokens = heads.MostTokens();
  hn::Vec<D> sums[kHeads][kVectors];
  HWY_UNROLL(4)
  for (std::size_t h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kVectors; ++v) sums[h][v] = hn::Zero(d);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    const T* value = heads.part.values + heads.Offset(t) + column;
    next.Step();
    hn::Vec<D> values[kVectors];
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kVectors; ++v) values[v] = LoadFloats(d, value + v * lanes);
    HWY_UNROLL(4)
    for (std::size_t h = 0; h < kHeads; ++h) {
      const auto weight = hn::Set(d, weights[h][t]);
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[h][v] = hn::MulAdd(weight, values[v], sums[h][v]);
      }
    }
  }
  HWY_UNROLL(4)
  for (std::size_t h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[h][v], d, mixed + h * heads.part.head_size + column + v * lanes);
    }
  }
}

template <std::size_t kHeads = kTileRows, typename T>
HWY_INLINE void Mix(const Heads<T>& heads, const Scores& weights, BlockFetcher& next,
                    float* mixed) {
  if constexpr (kHeads > 1) {
    if (heads.count < kHeads) return Mix<kHeads - 1>(heads, weights, next, mixed);
  }
  const Lanes d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t size = heads.part.head_size;
  std::size_t column = 0;
  for (; column + 4 * lanes <= size; column += 4 * lanes) {
    MixColumns<kHeads, 4>(d, heads, weights, column, next, mixed);
  }
  for (; column + lanes <= size; column += lanes) {
    MixColumns<kHeads, 1>(d, heads, weights, column, next, mixed);
  }
  for (; column < size; ++column) {
    MixColumns<kHeads, 1>(OneLane(), heads, weights, column, next, mixed);
  }
}

template <class Products, typename T>
HWY_INLINE void Attend(const AttentionPart<T>& part, BlockFetcher& next, const PartResult& result) {
  HWY_ALIGN Scores scores;
  const std::size_t all = part.positions * part.group;
  for (std::size_t first = 0; first < all; first += kTileRows) {
    const Heads<T> heads{part, first, std::min(kTileRows, all - first)};
    Score<Products>(heads, next, scores);
    for (std::size_t i = 0; i < heads.count; ++i) {
      Weigh(scores[i], heads.Tokens(i), heads.MostTokens(), result.highest[first + i],
            result.sums[first + i]);
    }
    Mix(heads, scores, next, result.mixed + first * part.head_size);
  }
}

void AttendBf16(const AttentionPart<Bf16>& part, BlockFetcher& next, const PartResult& result) {
#if HWY_TARGET == HWY_AVX3
  if (HasBf16Pairs()) return Attend<Bf16PairProducts>(part, next, result);
#endif
  Attend<Bf16Products>(part, next, result);
}

void AttendFloat(const AttentionPart<float>& part, BlockFetcher& next, const PartResult& result) {
  Attend<FloatProducts>(part, next, result);
}

template <typename T>
HWY_INLINE void Merge(const PartResult& first, std::size_t count, std::size_t stride,
                      std::size_t heads, std::size_t head_size, T* out) {
  for (std::size_t h = 0; h < heads; ++h) {
    float top = first.highest[h];
    for (std::size_t p = 1; p < count; ++p) top = std::max(top, first.highest[p * stride + h]);
    float sum = 0;
    for (std::size_t p = 0; p < count; ++p) {
      float& weight = first.highest[p * stride + h];
      weight = std::exp(weight - top);
      sum += weight * first.sums[p * stride + h];
    }
    const float* weights = first.highest + h;
    const float* mixed = first.mixed + h * head_size;
    ForLanes(head_size, [=](auto d, std::size_t i) HWY_ATTR {
      auto total = hn::Zero(d);
      for (std::size_t p = 0; p < count; ++p) {
        const auto weight = hn::Set(d, weights[p * stride]);
        total = hn::MulAdd(weight, hn::LoadU(d, mixed + p * stride + i), total);
      }
      StoreFloats(d, Round<T>(d, hn::Div(total, hn::Set(d, sum))), out + h * head_size + i);
    });
  }
}

void MergeToBf16(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                 std::size_t head_size, Bf16* out) {
  Merge(first, count, stride, heads, head_size, out);
}

void MergeToFloat(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                  std::size_t head_size, float* out) {
  Merge(first, count, stride, heads, head_size, out);
}

}  // namespace syncline::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::model {
namespace {

HWY_EXPORT(AttendBf16);
HWY_EXPORT(AttendFloat);
HWY_EXPORT(MergeToBf16);
HWY_EXPORT(MergeToFloat);

}  // namespace

void AttendPart(const AttentionPart<Bf16>& part, BlockFetcher& next, const PartResult& result) {
  HWY_DYNAMIC_DISPATCH(AttendBf16)(part, next, result);
}

void AttendPart(const AttentionPart<float>& part, BlockFetcher& next, const PartResult& result) {
  HWY_DYNAMIC_DISPATCH(AttendFloat)(part, next, result);
}

void MergeParts(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                std::size_t head_size, Bf16* out) {
  HWY_DYNAMIC_DISPATCH(MergeToBf16)(first, count, stride, heads, head_size, out);
}

void MergeParts(const PartResult& first, std::size_t count, std::size_t stride, std::size_t heads,
                std::size_t head_size, float* out) {
  HWY_DYNAMIC_DISPATCH(MergeToFloat)(first, count, stride, heads, head_size, out);
}

}  // namespace syncline::model
#endif  // HWY_ONCE
