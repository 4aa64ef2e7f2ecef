// The class of each unit of a block is kept as four bit planes (bit p of the classes of 64 units is a
// word of plane p). From these the mask of any class is three operations for each 64 units, and only
// classes that have a change in the block are looked at unit by unit.
#include "delta/step_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "delta/step_kernels.cc"
#include <hwy/foreach_target.h>  // compiles this file once for each vector width
// after it
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace syncline::delta::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Planes = std::array<UnitMask, 4>;

// Where the units of one class are: their bits, and how many there are up to the end of each word.
struct ClassView {
  UnitMask mask;
  std::array<std::int16_t, kStepBlockWords> ends;
};

// ORs the bits of a mask of lanes into a word, from bit `lane` on.
template <class D, class M>
HWY_INLINE void PutBits(D d, M mask, std::size_t lane, std::uint64_t& word) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  word |= bits << lane;
}

#if HWY_TARGET != HWY_SCALAR
template <class D, class V>
HWY_INLINE V ClassesOf(D d, V units, unsigned base, int mantissa_bits) {
  using Unit = hn::TFromD<D>;
  const auto magnitude =
      hn::And(units, hn::Set(d, static_cast<Unit>(static_cast<Unit>(~Unit{0}) >> 1)));
  const auto one = hn::Set(d, Unit{1});
  const auto exponent = hn::ShiftRightSame(hn::Sub(hn::Max(magnitude, one), one), mantissa_bits);
  const auto first = hn::Set(d, static_cast<Unit>(base));
  return hn::Min(hn::Sub(hn::Max(exponent, first), first), hn::Set(d, Unit{15}));
}

// Eight-bit lanes cannot be shifted on every machine.
template <class D, class V>
HWY_INLINE V BytesShifted(D d, V units, int bits) {
  const hn::Repartition<std::uint16_t, D> wide;
  const auto shifted = hn::BitCast(d, hn::ShiftRightSame(hn::BitCast(wide, units), bits));
  return hn::And(shifted, hn::Set(d, static_cast<std::uint8_t>(255 >> bits)));
}
template <class D, class V>
HWY_INLINE V ByteClassesOf(D d, V units, unsigned base, int mantissa_bits) {
  const auto magnitude = hn::And(units, hn::Set(d, std::uint8_t{127}));
  const auto one = hn::Set(d, std::uint8_t{1});
  const auto exponent = BytesShifted(d, hn::Sub(hn::Max(magnitude, one), one), mantissa_bits);
  const auto first = hn::Set(d, static_cast<std::uint8_t>(base));
  return hn::Min(hn::Sub(hn::Max(exponent, first), first), hn::Set(d, std::uint8_t{15}));
}
#endif

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
    for (std::size_t p = 0; p < 4; ++p) planes[p][i / 64] |= (c >> p & 1) << (i % 64);
  }
#else
  const hn::CappedTag<Unit, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    std::array<std::uint64_t, 4> bits = {};
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const auto x =
          hn::LoadU(d, reinterpret_cast<const Unit*>(units + (word * 64 + lane) * sizeof(Unit)));
      hn::VFromD<decltype(d)> classes;
      if constexpr (sizeof(Unit) == 1) {
        classes = ByteClassesOf(d, x, base, Traits::kMantissaBits);
      } else {
        classes = ClassesOf(d, x, base, Traits::kMantissaBits);
      }
      for (std::size_t p = 0; p < 4; ++p) {
        PutBits(d, hn::TestBit(classes, hn::Set(d, static_cast<Unit>(1U << p))), lane, bits[p]);
      }
    }
    for (std::size_t p = 0; p < 4; ++p) planes[p][word] = bits[p];
  }
#endif
}

template <typename Unit>
bool MakeDifference(const std::byte* a, const std::byte* b, UnitMask& mask) {
  const hn::CappedTag<Unit, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t any = 0;
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    std::uint64_t bits = 0;
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const std::size_t at = (word * 64 + lane) * sizeof(Unit);
      const auto x = hn::LoadU(d, reinterpret_cast<const Unit*>(a + at));
      const auto y = hn::LoadU(d, reinterpret_cast<const Unit*>(b + at));
      PutBits(d, hn::Ne(x, y), lane, bits);
    }
    mask[word] = bits;
    any |= bits;
  }
  return any != 0;
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
  const hn::CappedTag<std::uint64_t, 8> d;
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
  for (std::size_t c = 0; c < kMaxClasses; ++c) {
    counts[c] = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(d, sums[c])));
  }
}

// A bit for each class that has one of the units of `wanted`.
std::uint32_t ClassesIn(const Planes& planes, const UnitMask& wanted) {
  std::uint32_t found = 0;
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    for (std::uint64_t bits = wanted[word]; bits != 0; bits &= bits - 1) {
      const int at = __builtin_ctzll(bits);
      const std::uint64_t c = (planes[0][word] >> at & 1) | (planes[1][word] >> at & 1) << 1 |
                              (planes[2][word] >> at & 1) << 2 | (planes[3][word] >> at & 1) << 3;
      found |= 1U << c;
    }
  }
  return found;
}

// `units`: of the block; those beyond it are in no class.
void View(const Planes& planes, std::size_t c, std::size_t units, ClassView& view) {
  const hn::CappedTag<std::uint64_t, 8> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto flip = [&](std::size_t p) {
    return hn::Set(d, (c >> p & 1) != 0 ? std::uint64_t{0} : ~std::uint64_t{0});
  };
  const auto f0 = flip(0);
  const auto f1 = flip(1);
  const auto f2 = flip(2);
  const auto f3 = flip(3);
  alignas(64) std::uint64_t counts[kStepBlockWords];
  const auto count = [&](std::size_t word) {
    hn::StoreU(hn::PopulationCount(hn::LoadU(d, &view.mask[word])), d, counts + word);
  };
  for (std::size_t word = 0; word < kStepBlockWords; word += lanes) {
    const auto a = hn::And(hn::Xor(hn::LoadU(d, &planes[0][word]), f0),
                           hn::Xor(hn::LoadU(d, &planes[1][word]), f1));
    const auto b = hn::And(hn::Xor(hn::LoadU(d, &planes[2][word]), f2),
                           hn::Xor(hn::LoadU(d, &planes[3][word]), f3));
    hn::StoreU(hn::And(a, b), d, &view.mask[word]);
    count(word);
  }
  if (c == 0 && units < kStepBlockUnits) {
    for (std::size_t word = units / 64; word < kStepBlockWords; ++word) {
      const std::size_t from = word * 64;
      view.mask[word] &= units > from ? ~std::uint64_t{0} >> (64 - (units - from)) : 0;
    }
    for (std::size_t word = 0; word < kStepBlockWords; word += lanes) count(word);
  }
  std::uint64_t sum = 0;
  for (std::size_t word = 0; word < kStepBlockWords; ++word) {
    sum += counts[word];
    view.ends[word] = static_cast<std::int16_t>(sum);
  }
}

// The unit of the class whose number in the block is `rank`.
HWY_INLINE std::size_t FindUnit(const ClassView& view, std::uint32_t rank) {
  const hn::CappedTag<std::int16_t, 32> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto wanted = hn::Set(d, static_cast<std::int16_t>(rank + 1));
  std::size_t word = 0;
  for (std::size_t at = 0; at < kStepBlockWords; at += lanes) {
    word += hn::CountTrue(d, hn::Lt(hn::LoadU(d, &view.ends[at]), wanted));
  }
  std::uint32_t left = word == 0 ? rank : rank - static_cast<std::uint32_t>(view.ends[word - 1]);
  std::uint64_t bits = view.mask[word];
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return word * 64 + static_cast<std::size_t>(
                         __builtin_ctzll(__builtin_ia32_pdep_di(std::uint64_t{1} << left, bits)));
#else
  for (; left > 0; --left) bits &= bits - 1;
  return word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
#endif
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
      for (std::uint64_t bits = changed[word]; bits != 0; bits &= bits - 1) {
        const auto unit = static_cast<std::uint32_t>(word * 64) +
                          static_cast<std::uint32_t>(__builtin_ctzll(bits));
        Emit(unit, before + unit - last, 0);
        before = 0;
        last = unit + 1;
      }
    }
    since[0] = before + static_cast<std::uint32_t>(units) - last;
  }

  void ScanClasses(std::size_t units, unsigned base, ClassCounts& since, const UnitMask& changed,
                   bool any) {
    std::array<std::byte, kStepBlockUnits * sizeof(Unit)> memory;
    Planes planes;
    MakePlanes<kind>(Whole<Unit>(old_units, units, memory), base, planes);
    ClassCounts counts;
    CountClasses(planes, counts);
    counts[0] -= static_cast<std::uint32_t>(kStepBlockUnits - units);
    const std::uint32_t found = any ? ClassesIn(planes, changed) : 0;
    ClassView view;
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      if ((found >> c & 1) == 0) {
        since[c] += counts[c];
        continue;
      }
      View(planes, c, units, view);
      std::uint32_t last = 0;  // rank after the last change
      std::uint32_t before = since[c];
      for (std::size_t word = 0; word < kStepBlockWords; ++word) {
        const std::uint32_t first =
            word == 0 ? 0 : static_cast<std::uint32_t>(view.ends[word - 1]);
        for (std::uint64_t bits = changed[word] & view.mask[word]; bits != 0; bits &= bits - 1) {
          const std::uint64_t below = (bits & -bits) - 1;
          const std::uint32_t rank =
              first + static_cast<std::uint32_t>(__builtin_popcountll(view.mask[word] & below));
          Emit(word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)), before + rank - last,
               c);
          before = 0;
          last = rank + 1;
        }
      }
      since[c] = before + counts[c] - last;
    }
  }
};

template <UnitKind kind>
std::size_t Scan(const std::byte* old_units, const std::byte* new_units, std::size_t units,
                 const ClassRule& rule, ClassCounts& since, Change* out, UnitMask& changed) {
  using Unit = typename UnitTraits<kind>::Unit;
  std::array<std::byte, kStepBlockUnits * sizeof(Unit)> old_memory;
  std::array<std::byte, kStepBlockUnits * sizeof(Unit)> new_memory;
  const bool any = MakeDifference<Unit>(Whole<Unit>(old_units, units, old_memory),
                                        Whole<Unit>(new_units, units, new_memory), changed);
  Scanner<kind> scanner = {old_units, new_units, out};
  if constexpr (UnitTraits<kind>::kFloat) {
    if (rule.classes > 1) {
      scanner.ScanClasses(units, rule.base, since, changed, any);
      return static_cast<std::size_t>(scanner.out - out);
    }
  }
  scanner.ScanAll(units, since, changed);
  return static_cast<std::size_t>(scanner.out - out);
}

template <UnitKind kind>
struct BlockReader {
  using Traits = UnitTraits<kind>;
  using Unit = typename Traits::Unit;

  const StepDecodeTables& tables;
  const std::byte* old_units;
  std::byte* new_units;
  UnitMask& changed;
  BackwardBits bits;
  std::uint32_t gap_state;
  std::uint32_t step_state;

  // Changes `unit`, which is of class c, by the next step, and returns its `at` plus 1 and the gap
  // after it, or kNone if there is no further change.
  HWY_INLINE std::uint32_t Change(std::size_t unit, std::size_t c, std::uint32_t at) {
    const CodeCell step = tables.steps[c][step_state];
    const CodeCell gap = tables.gaps[c][gap_state];
    bits.Refill();
    const std::uint64_t step_raw = bits.Take(step.extra_bits() + step.state_bits());
    step_state = step.next() + static_cast<std::uint32_t>(step_raw & LowBits(step.state_bits()));
    const auto extra = static_cast<std::uint32_t>(step_raw >> step.state_bits());
    const unsigned size_bits = step.extra_bits() - 1;
    const auto size = static_cast<Unit>(kTokenBases[step.symbol()] + 1 +
                                        (extra & static_cast<std::uint32_t>(LowBits(size_bits))));
    const Unit before = base::Load<Unit>(old_units + unit * sizeof(Unit));
    const auto key = static_cast<Unit>(
        Traits::Key(before) + ((extra >> size_bits & 1) != 0 ? static_cast<Unit>(-size) : size));
    base::Store(new_units + unit * sizeof(Unit), Traits::Key(key));
    changed[unit / 64] |= std::uint64_t{1} << (unit % 64);

    if constexpr (sizeof(Unit) == 4) bits.Refill();
    const std::uint64_t gap_raw = bits.Take(gap.extra_bits() + gap.state_bits());
    gap_state = gap.next() + static_cast<std::uint32_t>(gap_raw & LowBits(gap.state_bits()));
    if (gap.symbol() == kEndSymbol) return StepReader::kNone;
    return at + 1 + kTokenBases[gap.symbol() - 1] +
           static_cast<std::uint32_t>(gap_raw >> gap.state_bits());
  }

  // False if the stream ends too early.
  bool ReadAll(std::size_t units, std::uint32_t& rest) {
    while (rest < units) {
      rest = Change(rest, 0, rest);
      if (bits.Overrun()) return false;
    }
    if (rest != StepReader::kNone) rest -= static_cast<std::uint32_t>(units);
    return true;
  }

  bool ReadClasses(std::size_t units, ClassCounts& rest) {
    std::array<std::byte, kStepBlockUnits * sizeof(Unit)> memory;
    Planes planes;
    MakePlanes<kind>(Whole<Unit>(old_units, units, memory), tables.base, planes);
    ClassCounts counts;
    CountClasses(planes, counts);
    counts[0] -= static_cast<std::uint32_t>(kStepBlockUnits - units);
    ClassView view;
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      if (rest[c] < counts[c]) {
        View(planes, c, units, view);
        do {
          rest[c] = Change(FindUnit(view, rest[c]), c, rest[c]);
          if (bits.Overrun()) return false;
        } while (rest[c] < counts[c]);
      }
      if (rest[c] != StepReader::kNone) rest[c] -= counts[c];
    }
    return true;
  }
};

template <UnitKind kind>
bool Read(const std::byte* old_units, std::size_t units, StepReader& reader, std::byte* new_units,
          UnitMask& changed) {
  BlockReader<kind> block = {*reader.tables, old_units,        new_units,        changed,
                             reader.bits,    reader.gap_state, reader.step_state};
  bool whole = true;
  if constexpr (UnitTraits<kind>::kFloat) {
    whole = reader.tables->classes == 1 ? block.ReadAll(units, reader.rest[0])
                                        : block.ReadClasses(units, reader.rest);
  } else {
    whole = block.ReadAll(units, reader.rest[0]);
  }
  reader.bits = block.bits;
  reader.gap_state = block.gap_state;
  reader.step_state = block.step_state;
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
