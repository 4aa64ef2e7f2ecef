// The class of each unit of a block is kept as four bit planes (bit p of the classes of 64 units is a
// word of plane p). From these the mask of any class is a few operations on vectors of words, and only
// classes that have a change in the block are looked at unit by unit.
//
// Words of planes and masks stand in columns: eight words that follow one another (a chunk) lie eight
// words apart. So a vector of eight words has one of each chunk, and sums over vectors count by chunk.
#include "delta/step_kernels.h"

#include <algorithm>
#include <cstring>

#define HWY_WANT_AVX3_DL  // it counts bits in vectors
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "delta/step_kernels.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace syncline::delta::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kChunks = 8;
constexpr std::size_t kChunkWords = kStepBlockWords / kChunks;
constexpr std::size_t InColumns(std::size_t word) {
  return word % kChunkWords * kChunks + word / kChunkWords;
}

using Planes = std::array<UnitMask, 4>;  // in columns

// Where the units of one class are.
struct ClassView {
  UnitMask mask;  // in columns
  // Units of the class in the block before each word, in four columns for each chunk: what a vector of
  // chunks holds in the four quarters of its lanes.
  std::array<std::int16_t, kStepBlockWords> starts;
};
constexpr std::size_t InQuarters(std::size_t word) {
  const std::size_t in_chunk = word % kChunkWords;
  return in_chunk / 4 * (4 * kChunks) + word / kChunkWords * 4 + in_chunk % 4;
}

// Writes the bits of a mask of lanes into a mask of units in columns, from unit `at` on.
template <class D, class M>
HWY_INLINE void PutBits(D d, M mask, std::size_t at, UnitMask& into) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(&into[InColumns(at / 64)]) + at / 8 % 8;
  if constexpr (hn::MaxLanes(D()) >= 8) {
    hn::StoreMaskBits(d, mask, bytes);
  } else {
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d, mask, bits);
    *bytes = static_cast<std::uint8_t>(at % 8 == 0 ? bits[0] : *bytes | bits[0] << (at % 8));
  }
}

#if HWY_TARGET != HWY_SCALAR
// The classes of units, which are at most 15: as the exponent less `base` is the magnitude less what
// base stands for, shifted.
template <int mantissa_bits, class D, class V>
HWY_INLINE V ClassesOf(D d, V units, unsigned base) {
  using Unit = hn::TFromD<D>;
  constexpr auto kMagnitude = static_cast<Unit>(static_cast<Unit>(~Unit{0}) >> 1);
  const auto first = hn::Set(d, static_cast<Unit>((base << mantissa_bits) + 1));
  const auto magnitude = hn::And(units, hn::Set(d, kMagnitude));
  const auto most = hn::Set(d, Unit{15});
  if constexpr (sizeof(Unit) == 4) {
    return hn::Min(hn::ShiftRight<mantissa_bits>(hn::Sub(hn::Max(magnitude, first), first)), most);
  } else if constexpr (sizeof(Unit) == 2) {
    return hn::Min(hn::ShiftRight<mantissa_bits>(hn::SaturatedSub(magnitude, first)), most);
  } else {
    // Lanes of eight bits cannot be shifted everywhere.
    const hn::Repartition<std::uint16_t, D> wide;
    const auto above = hn::BitCast(wide, hn::SaturatedSub(magnitude, first));
    const auto shifted = hn::BitCast(d, hn::ShiftRight<mantissa_bits>(above));
    return hn::Min(hn::And(shifted, hn::Set(d, static_cast<Unit>(255 >> mantissa_bits))), most);
  }
}
#endif

// The units at `from` + block, of which word `word` of a block is worked on: asks memory for them. What
// is done with a block takes about as long as memory does for the next one.
template <typename Unit>
HWY_INLINE void Prefetch(const std::byte* from, std::size_t word) {
  constexpr std::size_t kWordBytes = 64 * sizeof(Unit);
  const std::byte* next = from + (kStepBlockWords + word) * kWordBytes;
  for (std::size_t at = 0; at < kWordBytes; at += 64) __builtin_prefetch(next + at);
}

// Of kStepBlockUnits units.
template <UnitKind kind>
void MakePlanes(const std::byte* units, unsigned base, Planes& planes) {
  using Traits = UnitTraits<kind>;
  using Unit = typename Traits::Unit;
#if HWY_TARGET == HWY_SCALAR
  planes = {};
  for (std::size_t i = 0; i < kStepBlockUnits; ++i) {
    const std::uint32_t exponent = Traits::Exponent(base::Load<Unit>(units + i * sizeof(Unit)));
    const std::uint64_t c = std::min<std::uint32_t>(exponent - std::min(exponent, base), 15);
    for (std::size_t p = 0; p < 4; ++p) planes[p][InColumns(i / 64)] |= (c >> p & 1) << (i % 64);
  }
#else
  const hn::CappedTag<Unit, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const std::size_t at = word * 64 + lane;
      const auto x = hn::LoadU(d, reinterpret_cast<const Unit*>(units + at * sizeof(Unit)));
      const auto classes = ClassesOf<Traits::kMantissaBits>(d, x, base);
      for (std::size_t p = 0; p < 4; ++p) {
        PutBits(d, hn::TestBit(classes, hn::Set(d, static_cast<Unit>(1U << p))), at, planes[p]);
      }
    }
  }
#endif
}

template <typename Unit>
void MakeDifference(const std::byte* a, const std::byte* b, UnitMask& mask) {
  const hn::CappedTag<Unit, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t at = 0; at < kStepBlockUnits; at += lanes) {
    const auto x = hn::LoadU(d, reinterpret_cast<const Unit*>(a + at * sizeof(Unit)));
    const auto y = hn::LoadU(d, reinterpret_cast<const Unit*>(b + at * sizeof(Unit)));
    PutBits(d, hn::Ne(x, y), at, mask);
  }
}

// The mask of each class of a vector of words, from the planes there.
template <class V>
struct MasksAt {
  V low[4];
  V high[4];

  template <class D>
  HWY_INLINE MasksAt(D d, const Planes& planes, std::size_t word) {
    const V p0 = hn::LoadU(d, &planes[0][word]);
    const V p1 = hn::LoadU(d, &planes[1][word]);
    const V p2 = hn::LoadU(d, &planes[2][word]);
    const V p3 = hn::LoadU(d, &planes[3][word]);
    low[0] = hn::AndNot(p1, hn::Not(p0));
    low[1] = hn::AndNot(p1, p0);
    low[2] = hn::AndNot(p0, p1);
    low[3] = hn::And(p0, p1);
    high[0] = hn::AndNot(p3, hn::Not(p2));
    high[1] = hn::AndNot(p3, p2);
    high[2] = hn::AndNot(p2, p3);
    high[3] = hn::And(p2, p3);
  }
  HWY_INLINE V Of(std::size_t c) const { return hn::And(low[c % 4], high[c / 4]); }
};

// Units of each class in the whole block.
void CountClasses(const Planes& planes, ClassCounts& counts) {
  const hn::CappedTag<std::uint64_t, kChunks> d;
  using V = hn::VFromD<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  V sums[kMaxClasses];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::size_t word = 0; word < kStepBlockWords; word += lanes) {
    const MasksAt<V> masks(d, planes, word);
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      sums[c] = hn::Add(sums[c], hn::PopulationCount(masks.Of(c)));
    }
  }
  // No sum is above 4096: four of them are added up in one word.
  for (std::size_t c = 0; c < kMaxClasses; c += 4) {
    const auto low = hn::Or(sums[c], hn::ShiftLeft<16>(sums[c + 1]));
    const auto high = hn::Or(sums[c + 2], hn::ShiftLeft<16>(sums[c + 3]));
    const std::uint64_t four = hn::GetLane(hn::SumOfLanes(d, hn::Or(low, hn::ShiftLeft<32>(high))));
    for (std::size_t i = 0; i < 4; ++i) {
      counts[c + i] = static_cast<std::uint32_t>(four >> (16 * i) & 0xFFFF);
    }
  }
}

HWY_INLINE std::size_t ClassOf(const Planes& planes, std::size_t unit) {
  const std::size_t word = InColumns(unit / 64);
  const std::size_t bit = unit % 64;
  return (planes[0][word] >> bit & 1) | (planes[1][word] >> bit & 1) << 1 |
         (planes[2][word] >> bit & 1) << 2 | (planes[3][word] >> bit & 1) << 3;
}

// `units`: of the block; those beyond it are in no class.
void View(const Planes& planes, std::size_t c, std::size_t units, ClassView& view) {
  const hn::CappedTag<std::uint64_t, kChunks> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto flip = [&](std::size_t p) {
    return hn::Set(d, (c >> p & 1) != 0 ? std::uint64_t{0} : ~std::uint64_t{0});
  };
  const auto f0 = flip(0);
  const auto f1 = flip(1);
  const auto f2 = flip(2);
  const auto f3 = flip(3);
  for (std::size_t word = 0; word < kStepBlockWords; word += lanes) {
    const auto a = hn::And(hn::Xor(hn::LoadU(d, &planes[0][word]), f0),
                           hn::Xor(hn::LoadU(d, &planes[1][word]), f1));
    const auto b = hn::And(hn::Xor(hn::LoadU(d, &planes[2][word]), f2),
                           hn::Xor(hn::LoadU(d, &planes[3][word]), f3));
    hn::StoreU(hn::And(a, b), d, &view.mask[word]);
  }
  if (c == 0 && units < kStepBlockUnits) {
    for (std::size_t word = units / 64; word < kStepBlockWords; ++word) {
      const std::size_t from = word * 64;
      view.mask[InColumns(word)] &= units > from ? ~std::uint64_t{0} >> (64 - (units - from)) : 0;
    }
  }
  // Within the chunks first; sums of a block fit a quarter of a lane.
  using V = hn::VFromD<decltype(d)>;
  alignas(64) std::uint64_t low[kChunks];
  alignas(64) std::uint64_t high[kChunks];
  alignas(64) std::uint64_t totals[kChunks];
  for (std::size_t chunk = 0; chunk < kChunks; chunk += lanes) {
    const auto count = [&](std::size_t i) {
      return hn::PopulationCount(hn::LoadU(d, &view.mask[i * kChunks + chunk]));
    };
    const V s1 = count(0);
    const V s2 = hn::Add(s1, count(1));
    const V s3 = hn::Add(s2, count(2));
    const V s4 = hn::Add(s3, count(3));
    const V s5 = hn::Add(s4, count(4));
    const V s6 = hn::Add(s5, count(5));
    const V s7 = hn::Add(s6, count(6));
    hn::Store(hn::Or(hn::Or(hn::ShiftLeft<16>(s1), hn::ShiftLeft<32>(s2)), hn::ShiftLeft<48>(s3)),
              d, low + chunk);
    hn::Store(hn::Or(hn::Or(s4, hn::ShiftLeft<16>(s5)),
                     hn::Or(hn::ShiftLeft<32>(s6), hn::ShiftLeft<48>(s7))),
              d, high + chunk);
    hn::Store(hn::Add(s7, count(7)), d, totals + chunk);
  }
  constexpr std::uint64_t kQuarters = 0x0001'0001'0001'0001;
  std::uint64_t before = 0;
  auto* starts = reinterpret_cast<std::byte*>(view.starts.data());
  for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
    base::Store(starts + 8 * chunk, low[chunk] + before);
    base::Store(starts + 8 * (kChunks + chunk), high[chunk] + before);
    before += totals[chunk] * kQuarters;
  }
}

// The unit of the class whose number in the block is `rank`.
HWY_INLINE std::size_t FindUnit(const ClassView& view, std::uint32_t rank) {
  const hn::CappedTag<std::int16_t, 32> d;
  const auto wanted = hn::Set(d, static_cast<std::int16_t>(rank + 1));
  std::size_t started = 0;  // words that begin up to there
  for (std::size_t at = 0; at < kStepBlockWords; at += hn::Lanes(d)) {
    started += hn::CountTrue(d, hn::Lt(hn::LoadU(d, &view.starts[at]), wanted));
  }
  const std::size_t word = started - 1;
  std::uint32_t left = rank - static_cast<std::uint32_t>(view.starts[InQuarters(word)]);
  std::uint64_t bits = view.mask[InColumns(word)];
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  bits = __builtin_ia32_pdep_di(std::uint64_t{1} << left, bits);
#else
  for (; left > 0; --left) bits &= bits - 1;
#endif
  return word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
}

// The number in the block of a unit of the class.
HWY_INLINE std::uint32_t RankOf(const ClassView& view, std::size_t unit) {
  const std::size_t word = unit / 64;
  const std::uint64_t below = (std::uint64_t{1} << (unit % 64)) - 1;
  return static_cast<std::uint32_t>(view.starts[InQuarters(word)]) +
         static_cast<std::uint32_t>(__builtin_popcountll(view.mask[InColumns(word)] & below));
}

// Blocks that are not whole are looked at in memory of their own, with zeros after them.
template <typename Unit>
HWY_INLINE const std::byte* Whole(const std::byte* units, std::size_t count,
                                  std::array<std::byte, kStepBlockUnits * sizeof(Unit)>& memory) {
  if (count == kStepBlockUnits) return units;
  std::memcpy(memory.data(), units, count * sizeof(Unit));
  std::memset(memory.data() + count * sizeof(Unit), 0, memory.size() - count * sizeof(Unit));
  return memory.data();
}

template <UnitKind kind>
struct Scanner {
  using Traits = UnitTraits<kind>;
  using Unit = typename Traits::Unit;

  const std::byte* old_units;
  const std::byte* new_units;
  Change* out;

  HWY_INLINE void Emit(std::size_t unit, std::uint32_t gap, std::size_t c) {
    const Unit before = base::Load<Unit>(old_units + unit * sizeof(Unit));
    const Unit after = base::Load<Unit>(new_units + unit * sizeof(Unit));
    *out++ = {static_cast<std::uint32_t>(gap * kMaxClasses + c),
              static_cast<Unit>(Traits::Key(after) - Traits::Key(before))};
  }

  void ScanAll(std::size_t units, ClassCounts& since, const UnitMask& changed) {
    std::uint32_t last = 0;  // unit after the last change
    std::uint32_t before = since[0];
    for (std::size_t word = 0; word < kStepBlockWords; ++word) {
      for (std::uint64_t bits = changed[InColumns(word)]; bits != 0; bits &= bits - 1) {
        const auto unit = static_cast<std::uint32_t>(word * 64) +
                          static_cast<std::uint32_t>(__builtin_ctzll(bits));
        Emit(unit, before + unit - last, 0);
        before = 0;
        last = unit + 1;
      }
    }
    since[0] = before + static_cast<std::uint32_t>(units) - last;
  }

  void ScanClasses(std::size_t units, unsigned base, ClassCounts& since, const UnitMask& changed) {
    std::array<std::byte, kStepBlockUnits * sizeof(Unit)> memory;
    Planes planes;
    MakePlanes<kind>(Whole<Unit>(old_units, units, memory), base, planes);
    ClassCounts counts;
    CountClasses(planes, counts);
    counts[0] -= static_cast<std::uint32_t>(kStepBlockUnits - units);
    std::array<std::uint16_t, kStepBlockUnits> sorted;
    std::array<std::uint16_t, kMaxClasses + 1> places;
    SortByClass(planes, changed, sorted, places);
    ClassView view;
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      for (std::size_t word = 4 * c; word < 4 * c + 4; ++word) {
        Prefetch<Unit>(old_units, word);
        Prefetch<Unit>(new_units, word);
      }
      if (places[c] == places[c + 1]) {
        since[c] += counts[c];
        continue;
      }
      View(planes, c, units, view);
      std::uint32_t last = 0;  // rank after the last change
      std::uint32_t before = since[c];
      for (std::size_t i = places[c]; i < places[c + 1]; ++i) {
        const std::uint32_t rank = RankOf(view, sorted[i]);
        Emit(sorted[i], before + rank - last, c);
        before = 0;
        last = rank + 1;
      }
      since[c] = before + counts[c] - last;
    }
  }

  // Units of `changed` by class and position; those of class c begin at places[c].
  static void SortByClass(const Planes& planes, const UnitMask& changed,
                          std::array<std::uint16_t, kStepBlockUnits>& sorted,
                          std::array<std::uint16_t, kMaxClasses + 1>& places) {
    std::array<std::uint16_t, kStepBlockUnits> found;  // class * kStepBlockUnits + unit
    static_assert(kMaxClasses * kStepBlockUnits <= 65536);
    std::array<std::uint16_t, kMaxClasses> counts = {};
    std::size_t count = 0;
    for (std::size_t word = 0; word < kStepBlockWords; ++word) {
      for (std::uint64_t bits = changed[InColumns(word)]; bits != 0; bits &= bits - 1) {
        const std::size_t unit = word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
        const std::size_t c = ClassOf(planes, unit);
        ++counts[c];
        found[count++] = static_cast<std::uint16_t>(c * kStepBlockUnits + unit);
      }
    }
    std::array<std::uint16_t, kMaxClasses> next;
    places[0] = 0;
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      next[c] = places[c];
      places[c + 1] = static_cast<std::uint16_t>(places[c] + counts[c]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      sorted[next[found[i] / kStepBlockUnits]++] =
          static_cast<std::uint16_t>(found[i] % kStepBlockUnits);
    }
  }
};

template <UnitKind kind>
std::size_t Scan(const std::byte* old_units, const std::byte* new_units, std::size_t units,
                 const ClassRule& rule, ClassCounts& since, Change* out, UnitMask& changed) {
  using Unit = typename UnitTraits<kind>::Unit;
  std::array<std::byte, kStepBlockUnits * sizeof(Unit)> old_memory;
  std::array<std::byte, kStepBlockUnits * sizeof(Unit)> new_memory;
  UnitMask difference;  // in columns
  MakeDifference<Unit>(Whole<Unit>(old_units, units, old_memory),
                       Whole<Unit>(new_units, units, new_memory), difference);
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    changed[word] = difference[InColumns(word)];
  }
  Scanner<kind> scanner = {old_units, new_units, out};
  if constexpr (UnitTraits<kind>::kFloat) {
    if (rule.classes > 1) {
      scanner.ScanClasses(units, rule.base, since, difference);
      return static_cast<std::size_t>(scanner.out - out);
    }
  }
  scanner.ScanAll(units, since, difference);
  return static_cast<std::size_t>(scanner.out - out);
}

// Where a stream is read. Kept in variables of the loops: what is written to units could be anything
// in memory, but not these.
struct Cursor {
  BackwardBits bits;
  std::uint32_t gap_state;
  std::uint32_t step_state;
};

template <UnitKind kind>
struct BlockReader {
  using Traits = UnitTraits<kind>;
  using Unit = typename Traits::Unit;

  const StepDecodeTables& tables;
  const std::byte* const old_units;
  std::byte* const new_units;
  UnitMask& changed;

  // Changes `unit`, which is of class c, by the next step, and returns its `at` plus 1 and the gap
  // after it, or kNone if there is no further change.
  HWY_INLINE std::uint32_t Change(Cursor& cursor, std::size_t unit, std::size_t c,
                                  std::uint32_t at) const {
    const CodeCell step = tables.steps[c][cursor.step_state];
    const CodeCell gap = tables.gaps[c][cursor.gap_state];
    cursor.bits.Refill();
    const std::uint64_t step_raw = cursor.bits.Take(step.extra_bits() + step.state_bits());
    cursor.step_state =
        step.next() + static_cast<std::uint32_t>(step_raw & LowBits(step.state_bits()));
    if constexpr (sizeof(Unit) == 4) cursor.bits.Refill();
    const std::uint64_t gap_raw = cursor.bits.Take(gap.extra_bits() + gap.state_bits());
    cursor.gap_state = gap.next() + static_cast<std::uint32_t>(gap_raw & LowBits(gap.state_bits()));

    const auto extra = static_cast<std::uint32_t>(step_raw >> step.state_bits());
    const unsigned size_bits = step.extra_bits() - 1;
    const auto size = static_cast<Unit>(kTokenBases[step.symbol()] + 1 +
                                        (extra & static_cast<std::uint32_t>(LowBits(size_bits))));
    const auto negative = static_cast<Unit>(-static_cast<Unit>(extra >> size_bits & 1));
    const Unit before = base::Load<Unit>(old_units + unit * sizeof(Unit));
    const auto key =
        static_cast<Unit>(Traits::Key(before) + static_cast<Unit>((size ^ negative) - negative));
    base::Store(new_units + unit * sizeof(Unit), Traits::Key(key));
    changed[unit / 64] |= std::uint64_t{1} << (unit % 64);

    if (gap.symbol() == kEndSymbol) return StepReader::kNone;
    return at + 1 + kTokenBases[gap.symbol() - 1] +
           static_cast<std::uint32_t>(gap_raw >> gap.state_bits());
  }

  // False if the stream ends too early.
  bool ReadAll(Cursor& out, std::size_t units, std::uint32_t& rest) const {
    Cursor cursor = out;
    std::uint32_t unit = rest;
    while (unit < units) {
      unit = Change(cursor, unit, 0, unit);
      if (cursor.bits.Overrun()) return false;
    }
    rest = unit == StepReader::kNone ? unit : unit - static_cast<std::uint32_t>(units);
    out = cursor;
    return true;
  }

  bool ReadClasses(Cursor& out, std::size_t units, ClassCounts& rest) const {
    std::array<std::byte, kStepBlockUnits * sizeof(Unit)> memory;
    Planes planes;
    MakePlanes<kind>(Whole<Unit>(old_units, units, memory), tables.base, planes);
    ClassCounts counts;
    CountClasses(planes, counts);
    counts[0] -= static_cast<std::uint32_t>(kStepBlockUnits - units);
    ClassView view;
    Cursor cursor = out;
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      for (std::size_t word = 4 * c; word < 4 * c + 4; ++word) Prefetch<Unit>(old_units, word);
      std::uint32_t rank = rest[c];
      const std::uint32_t count = counts[c];
      if (rank < count) {
        View(planes, c, units, view);
        do {
          rank = Change(cursor, FindUnit(view, rank), c, rank);
          if (cursor.bits.Overrun()) return false;
        } while (rank < count);
      }
      rest[c] = rank == StepReader::kNone ? rank : rank - count;
    }
    out = cursor;
    return true;
  }
};

template <UnitKind kind>
bool Read(const std::byte* old_units, std::size_t units, StepReader& reader, std::byte* new_units,
          UnitMask& changed) {
  const BlockReader<kind> block = {*reader.tables, old_units, new_units, changed};
  Cursor cursor = {reader.bits, reader.gap_state, reader.step_state};
  bool whole = true;
  if constexpr (UnitTraits<kind>::kFloat) {
    whole = reader.tables->classes == 1 ? block.ReadAll(cursor, units, reader.rest[0])
                                        : block.ReadClasses(cursor, units, reader.rest);
  } else {
    whole = block.ReadAll(cursor, units, reader.rest[0]);
  }
  reader.bits = cursor.bits;
  reader.gap_state = cursor.gap_state;
  reader.step_state = cursor.step_state;
  return whole;
}

std::size_t ScanOfKind(const std::byte* old_units, const std::byte* new_units, std::size_t units,
                       const ClassRule& rule, ClassCounts& since, Change* out, UnitMask& changed) {
  return WithKind(rule.kind, [&]<UnitKind kind>() {
    return Scan<kind>(old_units, new_units, units, rule, since, out, changed);
  });
}

bool ReadOfKind(const std::byte* old_units, std::size_t units, UnitKind kind, StepReader& reader,
                std::byte* new_units, UnitMask& changed) {
  return WithKind(
      kind, [&]<UnitKind k>() { return Read<k>(old_units, units, reader, new_units, changed); });
}

}  // namespace syncline::delta::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace syncline::delta {
namespace {

HWY_EXPORT(ScanOfKind);
HWY_EXPORT(ReadOfKind);

}  // namespace

std::size_t ScanBlock(const std::byte* old_units, const std::byte* new_units, std::size_t units,
                      const ClassRule& rule, ClassCounts& since, Change* out, UnitMask& changed) {
  return HWY_DYNAMIC_DISPATCH(ScanOfKind)(old_units, new_units, units, rule, since, out, changed);
}

base::Status StepReader::Open(const StepDecodeTables& with, base::ByteSpan stream) {
  tables = &with;
  if (!bits.Open(stream)) return base::Fail(base::Code::kCorrupt, "there is no change stream");
  bits.Refill();
  gap_state = static_cast<std::uint32_t>(bits.Take(kGapLog));
  step_state = static_cast<std::uint32_t>(bits.Take(kStepLog));
  rest.fill(kNone);
  for (std::size_t c = 0; c < with.classes; ++c) {
    if (bits.Overrun()) break;
    bits.Refill();
    const CodeCell gap = with.gaps[c][gap_state];
    const std::uint64_t raw = bits.Take(gap.extra_bits() + gap.state_bits());
    gap_state = gap.next() + static_cast<std::uint32_t>(raw & LowBits(gap.state_bits()));
    if (gap.symbol() == kEndSymbol) continue;
    rest[c] = kTokenBases[gap.symbol() - 1] + static_cast<std::uint32_t>(raw >> gap.state_bits());
  }
  if (!bits.Overrun()) return {};
  return base::Fail(base::Code::kCorrupt, "the change stream is cut short");
}

base::Status StepReader::Finish() const {
  if (bits.AtEnd() && gap_state == 0 && step_state == 0 &&
      std::ranges::all_of(rest, [](std::uint32_t left) { return left == kNone; })) {
    return {};
  }
  return base::Fail(base::Code::kCorrupt,
                    "the change stream does not end with the tensors: it is damaged, or they are "
                    "not the ones that it was made for");
}

base::Status ReadBlock(const std::byte* old_units, std::size_t units, UnitKind kind,
                       StepReader& reader, std::byte* new_units, UnitMask& changed) {
  changed.fill(0);
  if (HWY_DYNAMIC_DISPATCH(ReadOfKind)(old_units, units, kind, reader, new_units, changed)) {
    return {};
  }
  return base::Fail(base::Code::kCorrupt,
                    "the change stream ends too early: it is damaged, or the tensors are not the "
                    "ones that it was made for");
}

}  // namespace syncline::delta
#endif  // HWY_ONCE
