// How a tile is reordered. Word 4c + t of the four that Marlin's thread (c, t) reads (c < 8, t < 4;
// one word for each block j of 16 outputs) holds, from the lowest nibble, in terms of the rows
// a = 16j + c and b = a + 8 and of the columns 2t, 2t + 8, 2t + 1, 2t + 9:
//
//   a[2t] a[2t+8] b[2t] b[2t+8] a[2t+1] a[2t+9] b[2t+1] b[2t+9]
//
// 1. Within the 8 bytes of one row the high nibble of byte t and the low one of byte t + 4 change
//    places. Then byte t is (2t, 2t+8), and byte t + 4 is (2t+1, 2t+9).
// 2. What is left moves whole bytes: byte t of a, byte t of b, byte t + 4 of a, byte t + 4 of b
//    make a word, and the words of j = 0 … 3 follow one another.
// Step 1 is its own inverse.
#include "quant/marlin_tiles.h"

#include <bit>

#include "base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/marlin_tiles.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "quant/bf16_round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::quant::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlocks = 4;  // of 16 outputs, in a band
constexpr std::size_t kChunk = 8;   // tiles whose rows fill a cache line
constexpr std::uint64_t kNibbles = 0x0000'0000'F0F0'F0F0U;
constexpr int kDistance = 28;  // from the high nibble of byte t to the low one of byte t + 4

HWY_INLINE std::uint64_t SwapNibbles(std::uint64_t row) {
  const std::uint64_t differ = (row >> kDistance ^ row) & kNibbles;
  return row ^ differ ^ differ << kDistance;
}

// Where byte `at` of row 16j + c + 8h goes in the tile, after step 1.
HWY_INLINE std::size_t PlaceInTile(std::size_t c, std::size_t j, std::size_t h, std::size_t at) {
  return (4 * c + at % 4) * 16 + 4 * j + 2 * (at / 4) + h;
}

// Calls body(row, c, j, h) for the rows of a band.
template <class Body>
HWY_INLINE void ForRows(const Body& body) {
  for (std::size_t c = 0; c < 8; ++c) {
    for (std::size_t j = 0; j < kBlocks; ++j) {
      for (std::size_t h = 0; h < 2; ++h) body(16 * j + c + 8 * h, c, j, h);
    }
  }
}

HWY_INLINE void TileOne(const std::byte* rows, std::size_t row_stride, std::byte* tile) {
  ForRows([=](std::size_t row, std::size_t c, std::size_t j, std::size_t h) {
    const std::uint64_t swapped = SwapNibbles(base::Load<std::uint64_t>(rows + row * row_stride));
    for (std::size_t at = 0; at < kTileRowBytes; ++at) {
      tile[PlaceInTile(c, j, h, at)] = static_cast<std::byte>(swapped >> (8 * at));
    }
  });
}

HWY_INLINE void UntileOne(const std::byte* tile, std::byte* rows, std::size_t row_stride) {
  ForRows([=](std::size_t row, std::size_t c, std::size_t j, std::size_t h) {
    std::uint64_t swapped = 0;
    for (std::size_t at = 0; at < kTileRowBytes; ++at) {
      swapped |= std::to_integer<std::uint64_t>(tile[PlaceInTile(c, j, h, at)]) << (8 * at);
    }
    base::Store(rows + row * row_stride, SwapNibbles(swapped));
  });
}

// bf16 of the 16 values of a nibble.
HWY_INLINE void ValuesOfNibbles(float scale, std::uint16_t* values) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto value = hn::Iota(d, static_cast<float>(i) - 8);
    StoreRounded(d, hn::Mul(value, hn::Set(d, scale)), values + i);
  }
}

HWY_INLINE void LookUpOneByOne(const std::byte* nibbles, std::size_t count,
                               const std::uint16_t* values, std::uint16_t* bf16) {
  for (std::size_t i = 0; i < count; i += 2) {
    const auto two = std::to_integer<unsigned>(nibbles[i / 2]);
    bf16[i] = values[two & 15U];
    bf16[i + 1] = values[two >> 4];
  }
}

#if HWY_TARGET == HWY_SCALAR

void Tile(const std::byte* rows, std::size_t row_stride, std::size_t tiles, std::byte* tiled,
          std::size_t tile_stride) {
  for (std::size_t t = 0; t < tiles; ++t) {
    TileOne(rows + t * kTileRowBytes, row_stride, tiled + t * tile_stride);
  }
}

void Untile(const std::byte* tiled, std::size_t tile_stride, std::size_t tiles, std::byte* rows,
            std::size_t row_stride) {
  for (std::size_t t = 0; t < tiles; ++t) {
    UntileOne(tiled + t * tile_stride, rows + t * kTileRowBytes, row_stride);
  }
}

HWY_INLINE void OneGroup(const std::byte* nibbles, std::size_t count, float scale,
                         std::uint16_t* bf16) {
  std::uint16_t values[16];
  ValuesOfNibbles(scale, values);
  LookUpOneByOne(nibbles, count, values, bf16);
}

#else

using Bytes = hn::Full128<std::uint8_t>;
using Words = hn::Full128<std::uint32_t>;
using Pairs = hn::Full128<std::uint64_t>;
using Vector = hn::Vec<Pairs>;

HWY_INLINE const std::uint64_t* At(const std::byte* at) {
  return reinterpret_cast<const std::uint64_t*>(at);
}
HWY_INLINE std::uint64_t* At(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }

HWY_INLINE Vector SwapNibbles(Vector rows) {
  const Pairs d;
  const auto differ = hn::And(hn::Xor(hn::ShiftRight<kDistance>(rows), rows), hn::Set(d, kNibbles));
  return hn::Xor(rows, hn::Xor(differ, hn::ShiftLeft<kDistance>(differ)));
}

// The rows of 4 words change places with its columns.
HWY_INLINE void Transpose(Vector& v0, Vector& v1, Vector& v2, Vector& v3) {
  const Pairs pairs;
  const Words words;
  const auto low = [=](Vector a, Vector b) HWY_ATTR {
    return hn::BitCast(pairs,
                       hn::InterleaveLower(words, hn::BitCast(words, a), hn::BitCast(words, b)));
  };
  const auto high = [=](Vector a, Vector b) HWY_ATTR {
    return hn::BitCast(pairs,
                       hn::InterleaveUpper(words, hn::BitCast(words, a), hn::BitCast(words, b)));
  };
  const Vector low01 = low(v0, v1);
  const Vector low23 = low(v2, v3);
  const Vector high01 = high(v0, v1);
  const Vector high23 = high(v2, v3);
  v0 = hn::InterleaveLower(pairs, low01, low23);
  v1 = hn::InterleaveUpper(pairs, low01, low23);
  v2 = hn::InterleaveLower(pairs, high01, high23);
  v3 = hn::InterleaveUpper(pairs, high01, high23);
}

HWY_INLINE Vector Shuffle(Vector v, const std::uint8_t* table) {
  const Bytes bytes;
  return hn::BitCast(Pairs(), hn::TableLookupBytes(hn::BitCast(bytes, v), hn::Load(bytes, table)));
}

// Bytes of rows (a, b) to words of t = 0 … 3, and back.
alignas(16) constexpr std::uint8_t kToWords[16] = {0, 8,  4, 12, 1, 9,  5, 13,
                                                   2, 10, 6, 14, 3, 11, 7, 15};
alignas(16) constexpr std::uint8_t kToRows[16] = {0, 4, 8, 12, 2, 6, 10, 14,
                                                  1, 5, 9, 13, 3, 7, 11, 15};

// The 64 bytes of c from the four (a, b) of j = 0 … 3.
HWY_INLINE void StoreWords(Vector v0, Vector v1, Vector v2, Vector v3, std::byte* to) {
  const Pairs d;
  v0 = Shuffle(SwapNibbles(v0), kToWords);
  v1 = Shuffle(SwapNibbles(v1), kToWords);
  v2 = Shuffle(SwapNibbles(v2), kToWords);
  v3 = Shuffle(SwapNibbles(v3), kToWords);
  Transpose(v0, v1, v2, v3);
  hn::StoreU(v0, d, At(to));
  hn::StoreU(v1, d, At(to + 16));
  hn::StoreU(v2, d, At(to + 32));
  hn::StoreU(v3, d, At(to + 48));
}

HWY_INLINE void LoadWords(const std::byte* from, Vector& v0, Vector& v1, Vector& v2, Vector& v3) {
  const Pairs d;
  v0 = hn::LoadU(d, At(from));
  v1 = hn::LoadU(d, At(from + 16));
  v2 = hn::LoadU(d, At(from + 32));
  v3 = hn::LoadU(d, At(from + 48));
  Transpose(v0, v1, v2, v3);
  v0 = SwapNibbles(Shuffle(v0, kToRows));
  v1 = SwapNibbles(Shuffle(v1, kToRows));
  v2 = SwapNibbles(Shuffle(v2, kToRows));
  v3 = SwapNibbles(Shuffle(v3, kToRows));
}

// Two tiles of the rows of one c. `rows` is that of row c.
HWY_INLINE void TileTwo(const std::byte* rows, std::size_t row_stride, std::byte* first,
                        std::byte* second) {
  const Pairs d;
  const auto row = [=](std::size_t i) HWY_ATTR { return hn::LoadU(d, At(rows + i * row_stride)); };
  const Vector a0 = row(0), b0 = row(8), a1 = row(16), b1 = row(24);
  const Vector a2 = row(32), b2 = row(40), a3 = row(48), b3 = row(56);
  StoreWords(hn::InterleaveLower(d, a0, b0), hn::InterleaveLower(d, a1, b1),
             hn::InterleaveLower(d, a2, b2), hn::InterleaveLower(d, a3, b3), first);
  StoreWords(hn::InterleaveUpper(d, a0, b0), hn::InterleaveUpper(d, a1, b1),
             hn::InterleaveUpper(d, a2, b2), hn::InterleaveUpper(d, a3, b3), second);
}

HWY_INLINE void UntileTwo(const std::byte* first, const std::byte* second, std::byte* rows,
                          std::size_t row_stride) {
  const Pairs d;
  Vector v0, v1, v2, v3, w0, w1, w2, w3;
  LoadWords(first, v0, v1, v2, v3);
  LoadWords(second, w0, w1, w2, w3);
  const auto store = [=](Vector v, Vector w, std::size_t a) HWY_ATTR {
    hn::StoreU(hn::InterleaveLower(d, v, w), d, At(rows + a * row_stride));
    hn::StoreU(hn::InterleaveUpper(d, v, w), d, At(rows + (a + 8) * row_stride));
  };
  store(v0, w0, 0);
  store(v1, w1, 16);
  store(v2, w2, 32);
  store(v3, w3, 48);
}

void Tile(const std::byte* rows, std::size_t row_stride, std::size_t tiles, std::byte* tiled,
          std::size_t tile_stride) {
  const std::size_t even = tiles / 2 * 2;
  for (std::size_t chunk = 0; chunk < even; chunk += kChunk) {
    const std::size_t last = HWY_MIN(even, chunk + kChunk);
    for (std::size_t c = 0; c < 8; ++c) {
      for (std::size_t t = chunk; t < last; t += 2) {
        std::byte* to = tiled + t * tile_stride + c * 64;
        TileTwo(rows + c * row_stride + t * kTileRowBytes, row_stride, to, to + tile_stride);
      }
    }
  }
  if (even != tiles) TileOne(rows + even * kTileRowBytes, row_stride, tiled + even * tile_stride);
}

void Untile(const std::byte* tiled, std::size_t tile_stride, std::size_t tiles, std::byte* rows,
            std::size_t row_stride) {
  const std::size_t even = tiles / 2 * 2;
  for (std::size_t chunk = 0; chunk < even; chunk += kChunk) {
    const std::size_t last = HWY_MIN(even, chunk + kChunk);
    for (std::size_t c = 0; c < 8; ++c) {
      for (std::size_t t = chunk; t < last; t += 2) {
        const std::byte* from = tiled + t * tile_stride + c * 64;
        // Of the next chunk: tiles lie where no processor would expect them.
        hwy::Prefetch(from + kChunk * tile_stride);
        hwy::Prefetch(from + (kChunk + 1) * tile_stride);
        UntileTwo(from, from + tile_stride, rows + c * row_stride + t * kTileRowBytes, row_stride);
      }
    }
  }
  if (even != tiles) UntileOne(tiled + even * tile_stride, rows + even * kTileRowBytes, row_stride);
}

// A value has two bytes: each is looked up in a table of 16.
HWY_INLINE void OneGroup(const std::byte* nibbles, std::size_t count, float scale,
                         std::uint16_t* bf16) {
  const Bytes bytes;
  const hn::Full128<std::uint16_t> halves;
  alignas(16) std::uint16_t values[16];
  ValuesOfNibbles(scale, values);
  const auto first = hn::BitCast(bytes, hn::Load(halves, values));
  const auto second = hn::BitCast(bytes, hn::Load(halves, values + 8));
  const auto low_bytes = hn::ConcatEven(bytes, second, first);
  const auto high_bytes = hn::ConcatOdd(bytes, second, first);
  const auto low_nibble = hn::Set(bytes, 0x0F);
  const auto store = [=](auto index, std::uint16_t* to) HWY_ATTR {
    const auto low = hn::TableLookupBytes(low_bytes, index);
    const auto high = hn::TableLookupBytes(high_bytes, index);
    hn::StoreU(hn::BitCast(halves, hn::InterleaveLower(bytes, low, high)), halves, to);
    hn::StoreU(hn::BitCast(halves, hn::InterleaveUpper(bytes, low, high)), halves, to + 8);
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto packed = hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(nibbles + i / 2));
    const auto even = hn::And(packed, low_nibble);
    const auto odd =
        hn::And(hn::BitCast(bytes, hn::ShiftRight<4>(hn::BitCast(halves, packed))), low_nibble);
    store(hn::InterleaveLower(bytes, even, odd), bf16 + i);
    store(hn::InterleaveUpper(bytes, even, odd), bf16 + i + 16);
  }
  LookUpOneByOne(nibbles + i / 2, count - i, values, bf16 + i);
}

#endif

void Nibbles(const std::byte* nibbles, std::size_t count, const NibbleGroups& groups,
             std::uint16_t* bf16) {
  for (std::size_t i = 0; i < count;) {
    const std::size_t group = groups.GroupOf(i);
    const std::size_t end = HWY_MIN(count, (group + 1) * groups.size - groups.before);
    OneGroup(nibbles + i / 2, end - i, groups.scales[group], bf16 + i);
    i = end;
  }
}

}  // namespace syncline::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::quant {
namespace {

HWY_EXPORT(Tile);
HWY_EXPORT(Untile);
HWY_EXPORT(Nibbles);

}  // namespace

void TileBand(const std::byte* rows, std::size_t row_stride, std::size_t tiles, std::byte* tiled,
              std::size_t tile_stride) {
  HWY_DYNAMIC_DISPATCH(Tile)(rows, row_stride, tiles, tiled, tile_stride);
}

void UntileBand(const std::byte* tiled, std::size_t tile_stride, std::size_t tiles, std::byte* rows,
                std::size_t row_stride) {
  HWY_DYNAMIC_DISPATCH(Untile)(tiled, tile_stride, tiles, rows, row_stride);
}

void DequantiseNibbles(const std::byte* nibbles, std::size_t count, const NibbleGroups& groups,
                       std::uint16_t* bf16) {
  HWY_DYNAMIC_DISPATCH(Nibbles)(nibbles, count, groups, bf16);
}

}  // namespace syncline::quant
#endif  // HWY_ONCE
