#include "delta/sparse_block.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::Load;
using Batch = SparseSequences::Batch;

// A bit for each unit of these eight bytes that is not zero.
template <std::size_t kUnit>
std::uint64_t NonZeroUnits(std::uint64_t bytes) {
  if constexpr (kUnit == 1) {
    constexpr std::uint64_t kLow7 = 0x7f7f'7f7f'7f7f'7f7f;
    const std::uint64_t high_bits = (((bytes & kLow7) + kLow7) | bytes) & ~kLow7;
    return (high_bits >> 7) * 0x0102'0408'1020'4080 >> 56;  // bit 8i to bit 56 + i
  } else {
    constexpr std::uint64_t kLowBytes = 0x00ff'00ff'00ff'00ff;
    const std::uint64_t either = (bytes | bytes >> 8) & kLowBytes;
    const std::uint64_t carries = (either + kLowBytes) >> 8 & 0x0001'0001'0001'0001;
    return carries * 0x0001'0002'0004'0008 >> 48 & 15;  // bit 16i to bit 48 + i
  }
}

// The first n of eight bytes; n < 8. Eight can be read.
std::uint64_t LoadFirst(const std::byte* from, std::size_t n) {
  return Load<std::uint64_t>(from) & LowBits(static_cast<unsigned>(8 * n));
}

// Two ways to write runs of literals at rising places of an image of zeros, in words of eight
// bytes: eight must be readable at each end of a run, and writable at any place of the image.
constexpr std::size_t kShortRun = 7;

// Without the mask.
class ImageWriter {
 public:
  // At most kShortRun bytes.
  void PutShort(std::size_t at, const std::byte* from, std::size_t n) {
    base::Store(image + at, LoadFirst(from, n));
  }
  void PutLong(std::size_t at, const std::byte* from, std::size_t n) {
    std::memcpy(image + at, from, n);
  }

  std::byte* image;
};

// With the mask. A unit belongs to one run only, so the byte before an odd place is zero unless it
// is of the same run.
template <std::size_t kUnit>
class MarkingWriter {
 public:
  void PutShort(std::size_t at, const std::byte* from, std::size_t n) {
    std::uint64_t bytes = LoadFirst(from, n);
    if constexpr (kUnit == 2) bytes <<= 8 * (at & 1);
    base::Store(image + (at & ~(kUnit - 1)), bytes);
    const std::uint64_t units = NonZeroUnits<kUnit>(bytes);
    std::uint64_t* const word = mask + at / kUnit / 64;
    const unsigned shift = at / kUnit % 64;
    word[0] |= units << shift;
    if (shift > 64 - 8 / kUnit) word[1] |= units >> (64 - shift);
  }
  void PutLong(std::size_t at, const std::byte* from, std::size_t n) {
    // Each step but the last ends where a unit does.
    std::size_t step = kShortRun - (at + 1) % kUnit;
    for (; n > kShortRun; step = kShortRun - (kUnit - 1)) {
      PutShort(at, from, step);
      at += step;
      from += step;
      n -= step;
    }
    PutShort(at, from, n);
  }

  std::byte* image;
  std::uint64_t* mask;
};

enum class Offsets : std::uint8_t {
  kSame,  // all have code 0: the last offset again, which is 1, or the one before it if there are no literals
  kOne,  // all have code 2; with two zero bits it stands for offset 1
  kAny,
};

// Decodes the next batch of `s`. False unless all offsets in it are 1; the library has to look at
// the frame then.
template <Offsets kOffsets>
[[gnu::always_inline]] inline bool DecodeBatch(Batch& s) {
  const SequenceCell* const literal_lengths = (*s.tables)[kLiteralLength].cells.data();
  const SequenceCell* const offsets = (*s.tables)[kOffset].cells.data();
  const SequenceCell* const match_lengths = (*s.tables)[kMatchLength].cells.data();
  BackwardBits bits = s.bits;
  auto [l_state, o_state, m_state] = s.states;
  const std::size_t size = std::min(s.left, SparseSequences::kBatch);
  std::uint64_t offset_bits = 0;  // in the two highest bits, any that was set
  std::uint64_t no_literals = 0;  // the highest bit is set if there was a sequence without

  // All but the states. At most 2 + 16 + 16 bits are taken, and 9 + 9 later.
  const auto read = [&](std::size_t i, const SequenceCell& l, const SequenceCell& o,
                        const SequenceCell& m) __attribute__((always_inline)) {
    if (bits.Overrun()) return false;
    bits.Refill();
    std::uint64_t offset = 0;
    if constexpr (kOffsets == Offsets::kOne) {
      offset_bits |= bits.Raw();
      bits.Skip(2);
    } else if constexpr (kOffsets == Offsets::kAny) {
      if (o.extra_bits > 2) return false;  // at least 5
      offset = o.value() + bits.Take(o.extra_bits);
    }
    const std::uint64_t extra = bits.Next(l.extra_bits + m.extra_bits);
    const std::uint64_t literals = l.value() + (extra & LowBits(l.extra_bits));
    s.literals[i] = static_cast<std::uint32_t>(literals);
    s.bytes[i] = static_cast<std::uint32_t>(literals + m.value() + (extra >> l.extra_bits));
    if constexpr (kOffsets == Offsets::kSame) no_literals |= literals - 1;
    if constexpr (kOffsets == Offsets::kAny) {
      if (s.history.Resolve(offset, literals != 0) != 1) return false;
    }
    return true;
  };

  // The states are not updated after the very last sequence.
  const std::size_t updated = size - (size == s.left ? 1 : 0);
  for (std::size_t i = 0; i < updated; ++i) {
    const SequenceCell l = literal_lengths[l_state];
    const SequenceCell o = offsets[o_state];
    const SequenceCell m = match_lengths[m_state];
    if (!read(i, l, o, m)) return false;
    const unsigned shift = l.value_and_shift + m.value_and_shift;
    const std::uint64_t states =
        bits.Raw() >> (shift & 63);  // in its lowest bits, unless they have none
    bits.Skip(-shift & 63);
    l_state = l.next_state + (states >> m.state_bits & LowBits(l.state_bits));
    m_state = m.next_state + (states & LowBits(m.state_bits));
    if constexpr (kOffsets == Offsets::kAny) {
      if (bits.Overrun()) return false;
      bits.Refill();
      o_state = o.next_state + bits.Take(o.state_bits);
    }
  }
  if (updated < size) {
    const SequenceCell l = literal_lengths[l_state];
    const SequenceCell m = match_lengths[m_state];
    if (!read(updated, l, offsets[o_state], m)) return false;
    bits.Skip(l.extra_bits + m.extra_bits);
  }
  s.bits = bits;
  s.states = {l_state, o_state, m_state};
  s.left -= size;
  s.size = size;
  return offset_bits >> 62 == 0 && (no_literals >> 63 == 0 || s.history.LastTwoAreOne());
}

// Puts the literals of a batch in their places; the block goes on at `at`. The byte before `from`
// can be read. Returns the bytes that the matches repeat, put together by "or".
template <typename Writer>
[[gnu::always_inline]] inline std::byte PutBatch(const Batch& s, const std::byte* from,
                                                 std::size_t at, Writer writer) {
  std::byte repeated{0};
  for (std::size_t i = 0; i < s.size; ++i) {
    const std::size_t n = s.literals[i];
    if (n <= kShortRun) [[likely]] {
      writer.PutShort(at, from, n);
    } else {
      writer.PutLong(at, from, n);
    }
    at += s.bytes[i];
    from += n;
    repeated |= from[-1];
  }
  return repeated;
}

// The two steps above, in the best version for this machine.
struct SequenceFunctions {
  bool (*decode[3])(Batch&);  // by Offsets
  std::byte (*put)(const Batch&, const std::byte* from, std::size_t at, ImageWriter);
  std::byte (*put_units_of_1)(const Batch&, const std::byte* from, std::size_t at,
                              MarkingWriter<1>);
  std::byte (*put_units_of_2)(const Batch&, const std::byte* from, std::size_t at,
                              MarkingWriter<2>);
};

template <Offsets kOffsets>
bool DecodePlain(Batch& s) {
  return DecodeBatch<kOffsets>(s);
}
template <typename Writer>
std::byte PutPlain(const Batch& s, const std::byte* from, std::size_t at, Writer writer) {
  return PutBatch(s, from, at, writer);
}
constexpr SequenceFunctions kPlainFunctions = {
    .decode = {DecodePlain<Offsets::kSame>, DecodePlain<Offsets::kOne>, DecodePlain<Offsets::kAny>},
    .put = PutPlain<ImageWriter>,
    .put_units_of_1 = PutPlain<MarkingWriter<1>>,
    .put_units_of_2 = PutPlain<MarkingWriter<2>>};

#if defined(__x86_64__)
// With shifts that need not all go through one register.
template <Offsets kOffsets>
[[gnu::target("bmi,bmi2")]] bool DecodeBmi(Batch& s) {
  return DecodeBatch<kOffsets>(s);
}
template <typename Writer>
[[gnu::target("bmi,bmi2")]] std::byte PutBmi(const Batch& s, const std::byte* from, std::size_t at,
                                             Writer writer) {
  return PutBatch(s, from, at, writer);
}
constexpr SequenceFunctions kBmiFunctions = {
    .decode = {DecodeBmi<Offsets::kSame>, DecodeBmi<Offsets::kOne>, DecodeBmi<Offsets::kAny>},
    .put = PutBmi<ImageWriter>,
    .put_units_of_1 = PutBmi<MarkingWriter<1>>,
    .put_units_of_2 = PutBmi<MarkingWriter<2>>};

const SequenceFunctions& Functions() {
  static const bool bmi = __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  return bmi ? kBmiFunctions : kPlainFunctions;
}
#else
const SequenceFunctions& Functions() { return kPlainFunctions; }
#endif

}  // namespace

void BlockTarget::PutLast(const std::byte* literals, std::size_t n, std::size_t at) const {
  if (many_literals) {
    ImageWriter{image}.PutLong(at, literals, n);
    // An odd block ends with half a unit.
    const std::size_t whole = (at + n + unit_bytes - 1) / unit_bytes * unit_bytes;
    tensor::NonZeroMask(image, whole, unit_bytes, mask);
  } else if (unit_bytes == 1) {
    MarkingWriter<1>{image, mask}.PutLong(at, literals, n);
  } else {
    MarkingWriter<2>{image, mask}.PutLong(at, literals, n);
  }
}

std::uint64_t SparseSequences::OffsetHistory::Resolve(std::uint64_t value, bool literals) {
  std::size_t index = 2;
  std::uint64_t offset = value - 3;
  if (value <= 3) {
    index = static_cast<std::size_t>(value) - (literals ? 1 : 0);
    offset = index == 3 ? last_[0] - 1 : last_[index];
  }
  if (index > 1) last_[2] = last_[1];
  if (index > 0) last_[1] = last_[0];
  last_[0] = offset;
  return offset;
}

std::optional<SequenceExtent> SparseSequences::Put(const SequenceTables& tables, BackwardBits bits,
                                                   std::size_t count, Literals literals,
                                                   std::size_t limit, bool zero_before,
                                                   const BlockTarget& target) {
  const SequenceFunctions& functions = Functions();
  Batch& batch = batch_;
  Offsets offsets = Offsets::kAny;
  if (tables[kOffset].log == 0) {
    const std::uint32_t value = tables[kOffset].cells[0].value();
    if (value == 1 && batch.history.LastIsOne()) offsets = Offsets::kSame;
    if (value == 4) offsets = Offsets::kOne;
  }
  bits.Refill();
  for (const SequencePart part : {kLiteralLength, kOffset, kMatchLength}) {
    batch.states[part] = bits.Take(tables[part].log);
  }
  batch.tables = &tables;
  batch.bits = bits;
  batch.left = count;
  SequenceExtent done;
  while (batch.left > 0) {
    if (!functions.decode[static_cast<std::size_t>(offsets)](batch)) return std::nullopt;
    std::uint32_t batch_literals = 0;
    std::uint32_t batch_bytes = 0;
    for (std::size_t i = 0; i < batch.size; ++i) {
      batch_literals += batch.literals[i];
      batch_bytes += batch.bytes[i];
    }
    if (batch_literals > literals.count - done.literals) return std::nullopt;
    if (batch_bytes > limit - done.bytes) return std::nullopt;
    if (done.bytes == 0 && batch.literals[0] == 0 && !zero_before) return std::nullopt;
    const std::byte* from = literals.bytes + done.literals;
    std::byte repeated;
    if (target.many_literals) {
      repeated = functions.put(batch, from, done.bytes, {target.image});
    } else if (target.unit_bytes == 1) {
      repeated = functions.put_units_of_1(batch, from, done.bytes, {target.image, target.mask});
    } else {
      repeated = functions.put_units_of_2(batch, from, done.bytes, {target.image, target.mask});
    }
    if (repeated != std::byte{0}) return std::nullopt;
    done.literals += batch_literals;
    done.bytes += batch_bytes;
  }
  if (!batch.bits.AtEnd()) return std::nullopt;
  if (offsets == Offsets::kOne) {
    // Three of them or more leave the same history.
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 3); ++i)
      batch.history.Resolve(4, true);
  }
  return done;
}

}  // namespace syncline::delta
