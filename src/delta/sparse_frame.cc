// A compressed block is a section of literals and a section of sequences: "copy so many literals,
// then repeat so many bytes from that far back". The literals are decoded first, all at once. Then
// each sequence puts its literals at their place in the image and marks them in the mask; its match
// is skipped, because it repeats a zero: its offset is 1 and the last literal is checked to be
// zero.
#include "delta/sparse_frame.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "delta/zstd_entropy.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::Result;
using base::Status;

constexpr std::size_t kMaxBlock = SparseFrameReader::kMaxBlock;

std::uint32_t Load24(const std::byte* from) {
  return static_cast<std::uint32_t>(from[0]) | static_cast<std::uint32_t>(from[1]) << 8 |
         static_cast<std::uint32_t>(from[2]) << 16;
}

// ---- From literals to image and mask.

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

// Writes literals at rising places of an image of kMaxBlock zeros.
template <std::size_t kUnit>
class Canvas {
 public:
  Canvas(std::byte* image, std::uint64_t* mask) : image_(image), mask_(mask) {}

  // A run of this many fits into a word that begins with a unit, wherever the run begins.
  static constexpr std::size_t kShort = 9 - kUnit;

  // n bytes that fit into such a word, and the eight bytes at `at` lie in the image. Eight bytes
  // can be read at `from`.
  void PutShort(std::size_t at, const std::byte* from, std::size_t n) {
    std::uint64_t bytes = Load<std::uint64_t>(from);
    if constexpr (kUnit == 1) {
      bytes &= Low(n);
    } else {
      // The byte before is zero wherever a run begins, or part of this run.
      bytes = (bytes & Low(n)) << (8 * (at & 1));
    }
    PutWord(at & ~(kUnit - 1), bytes);
  }

  // Any run inside the image that begins after a zero or a whole unit.
  void Put(std::size_t at, const std::byte* from, std::size_t n) {
    const std::size_t end = at + n;
    while (at < end) {
      if (n < kLongRun && at + 8 <= kMaxBlock) {
        // Up to the start of a unit if the run is longer.
        const std::size_t step = std::min(end - at, 8 - at % kUnit);
        PutShort(at, from, step);
        at += step;
        from += step;
        continue;
      }
      if (n >= kLongRun && at % kGroup == 0) {
        const std::size_t whole = (end - at) / kGroup * kGroup;
        if (whole > 0) {
          std::memcpy(image_ + at, from, whole);
          tensor::NonZeroMask(image_ + at, whole, kUnit, mask_ + at / kGroup);
          at += whole;
          from += whole;
          continue;
        }
      }
      // To the end of the word that `at` lies in, so that the next step starts on its own.
      const std::size_t step = std::min(end - at, 8 - at % 8);
      for (std::size_t i = 0; i < step; ++i, ++at, ++from) {
        image_[at] = *from;
        const std::size_t unit = at / kUnit;
        mask_[unit / 64] |= std::uint64_t{*from != std::byte{0}} << (unit % 64);
      }
    }
  }

 private:
  static constexpr std::size_t kGroup = 64 * kUnit;  // bytes of one word of the mask
  static constexpr std::size_t kLongRun = 2 * kGroup;

  // The n lowest bytes of a word; n <= 8.
  static std::uint64_t Low(std::size_t n) {
    return n == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * n)) - 1;
  }

  // Eight bytes at the start of a unit; those that are zero there stay zero.
  void PutWord(std::size_t at, std::uint64_t bytes) {
    base::Store(image_ + at, bytes);
    const std::uint64_t units = NonZeroUnits<kUnit>(bytes);
    const std::size_t unit = at / kUnit;
    const unsigned shift = unit % 64;
    mask_[unit / 64] |= units << shift;
    if (shift > 64 - 8 / kUnit) mask_[unit / 64 + 1] |= units >> (64 - shift);
  }

  std::byte* image_;
  std::uint64_t* mask_;
};

// ---- Sequences.

// A state of one of the three FSE tables: what it says, and how to come to the next state.
class Cell {
 public:
  Cell() = default;
  // The value is `value` plus the next extra_bits bits, the next state next_state plus state_bits
  // bits.
  constexpr Cell(std::uint32_t value, unsigned extra_bits)
      : packed_(std::uint64_t{value} << 32 | extra_bits << 16) {}
  constexpr Cell To(unsigned next_state, unsigned state_bits) const {
    Cell cell = *this;
    cell.packed_ |= next_state | std::uint64_t{state_bits} << 24;
    return cell;
  }

  std::uint32_t value() const { return static_cast<std::uint32_t>(packed_ >> 32); }
  unsigned extra_bits() const { return packed_ >> 16 & 0xff; }
  unsigned state_bits() const { return packed_ >> 24 & 0xff; }
  std::uint64_t next_state() const { return packed_ & 0xffff; }

 private:
  std::uint64_t packed_ = 0;
};

struct SequenceTable {
  std::array<Cell, 1 << kMaxFseLog> cells;
  unsigned log = 0;
};

// What is the same for all tables of a kind.
struct TableKind {
  const char* name;
  unsigned max_log;
  std::vector<Cell> codes;
  SequenceTable predefined;
};

void Build(const FseCounts& counts, const std::vector<Cell>& codes, SequenceTable& table) {
  table.log = counts.log;
  ForEachFseState(counts, [&](unsigned state, unsigned symbol, unsigned bits, unsigned base) {
    table.cells[state] = codes[symbol].To(base, bits);
  });
}

TableKind MakeKind(const char* name, unsigned max_log, std::vector<Cell> codes,
                   unsigned predefined_log, std::initializer_list<std::int16_t> predefined) {
  TableKind kind{.name = name, .max_log = max_log, .codes = std::move(codes), .predefined = {}};
  FseCounts counts;
  std::ranges::copy(predefined, counts.of.begin());
  counts.symbols = static_cast<unsigned>(predefined.size());
  counts.log = predefined_log;
  Build(counts, kind.codes, kind.predefined);
  return kind;
}

// Codes of lengths: each starts where the one before ends.
std::vector<Cell> LengthCodes(std::uint32_t first, unsigned plain,
                              std::initializer_list<unsigned> extra_bits) {
  std::vector<Cell> codes;
  for (unsigned i = 0; i < plain; ++i) codes.emplace_back(first++, 0U);
  for (const unsigned bits : extra_bits) {
    codes.emplace_back(first, bits);
    first += 1U << bits;
  }
  return codes;
}

std::vector<Cell> OffsetCodes() {
  std::vector<Cell> codes;
  for (unsigned code = 0; code < 32; ++code) codes.emplace_back(1U << code, code);
  return codes;
}

// The tables of RFC 8878, section 3.1.1.3.2.
const std::array<TableKind, 3>& Kinds() {
  static const std::array<TableKind, 3> kinds = {
      MakeKind("literal length", 9, LengthCodes(0, 16, {1, 1, 1, 1,  2,  2,  3,  3,  4,  6,
                                                        7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
               6, {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                   2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}),
      MakeKind("offset", 8, OffsetCodes(), 5, {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}),
      MakeKind(
          "match length", 9, LengthCodes(3, 32, {1, 1, 1, 1,  2,  2,  3,  3,  4,  4, 5,
                                                 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
          6, {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}),
  };
  return kinds;
}

// The last three offsets, which short codes refer to.
class OffsetHistory {
 public:
  // The offset that an offset code's value stands for, after a sequence with or without literals.
  std::uint64_t Resolve(std::uint64_t value, bool literals) {
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
  std::uint64_t last() const { return last_[0]; }

 private:
  std::array<std::uint64_t, 3> last_ = {1, 4, 8};
};

struct SequenceRun {
  const SequenceTable* literal_lengths = nullptr;
  const SequenceTable* offsets = nullptr;
  const SequenceTable* match_lengths = nullptr;
  BackwardBits bits = {};
  std::size_t count;
  std::size_t literals;  // how many there are
  std::size_t limit;     // of the block's content
  bool zero_before;      // the byte before the block is known to be zero
  // Results.
  std::size_t literals_used = 0;
  std::size_t size = 0;
};

// Whether all is well; if not, the library has to look at the frame. kPlain: the sequences all have
// one offset code, which is either 0
// ("the last offset", and that is 1) or 2 with two bits that must be zero (offset 1).
template <std::size_t kUnit, bool kPlain>
[[gnu::always_inline]] inline bool PutSequences(SequenceRun& run, OffsetHistory& history,
                                                const std::byte* literals, Canvas<kUnit> canvas) {
  const Cell* const literal_lengths = run.literal_lengths->cells.data();
  const Cell* const offsets = run.offsets->cells.data();
  const Cell* const match_lengths = run.match_lengths->cells.data();
  BackwardBits bits = run.bits;
  bits.Refill();
  Cell l = literal_lengths[bits.Take(run.literal_lengths->log)];
  Cell o = offsets[bits.Take(run.offsets->log)];
  Cell m = match_lengths[bits.Take(run.match_lengths->log)];
  const std::byte* from = literals;
  const std::byte* const from_end = literals + run.literals;
  const std::size_t limit = run.limit;
  std::size_t at = 0;
  std::byte repeated{0};            // all bytes that matches repeat
  std::uint64_t offset_extras = 0;  // likewise
  const unsigned offset_bits = o.extra_bits();
  for (std::size_t left = run.count;;) {
    if (bits.Overrun()) return false;
    bits.Refill();
    // At most 2 + 16 + 16 bits, and 9 + 9 + 8 for the states.
    const unsigned o_end = kPlain ? offset_bits : o.extra_bits();
    if (!kPlain && o_end > 2) return false;  // the offset is at least 5
    const unsigned m_end = o_end + m.extra_bits();
    const unsigned l_end = m_end + l.extra_bits();
    const std::uint64_t offset_extra = bits.Peek(o_end, o_end);
    const std::size_t match = m.value() + bits.Peek(m_end, m.extra_bits());
    const std::size_t n = l.value() + bits.Peek(l_end, l.extra_bits());
    offset_extras |= offset_extra;
    if (n == 0 || !kPlain) {
      const bool one = kPlain && offset_bits > 0;  // see below
      if (!one && history.Resolve(o.value() + offset_extra, n != 0) != 1) return false;
      if (n == 0 && at == 0 && !run.zero_before) return false;
    }
    if (n + match > limit - at || n > static_cast<std::size_t>(from_end - from)) return false;
    if (n <= Canvas<kUnit>::kShort && at + 8 <= kMaxBlock) {
      canvas.PutShort(at, from, n);
    } else {
      canvas.Put(at, from, n);
    }
    at += n + match;
    from += n;
    repeated |= n == 0 ? std::byte{0} : from[-1];
    if (--left == 0) {
      bits.Skip(l_end);
      break;
    }
    if constexpr (kPlain) {
      const unsigned l_state = l_end + l.state_bits();
      const unsigned m_state = l_state + m.state_bits();
      l = literal_lengths[l.next_state() + bits.Peek(l_state, l.state_bits())];
      m = match_lengths[m.next_state() + bits.Peek(m_state, m.state_bits())];
      bits.Skip(m_state);
    } else {
      bits.Skip(l_end);
      if (bits.Overrun()) return false;
      bits.Refill();
      l = literal_lengths[l.next_state() + bits.Take(l.state_bits())];
      m = match_lengths[m.next_state() + bits.Take(m.state_bits())];
      o = offsets[o.next_state() + bits.Take(o.state_bits())];
    }
  }
  run.literals_used = static_cast<std::size_t>(from - literals);
  run.size = at;
  if constexpr (kPlain) {
    if (offset_extras != 0) return false;
    // Three of them or more leave the same history.
    for (std::size_t i = 0; i < 3 && i < run.count && offset_bits > 0; ++i)
      history.Resolve(o.value(), true);
  }
  return bits.Left() == 0 && repeated == std::byte{0};
}

template <std::size_t kUnit>
[[gnu::always_inline]] inline bool PutSequences(SequenceRun& run, OffsetHistory& history,
                                                const std::byte* literals, std::byte* image,
                                                std::uint64_t* mask, bool plain) {
  const Canvas<kUnit> canvas(image, mask);
  return plain ? PutSequences<kUnit, true>(run, history, literals, canvas)
               : PutSequences<kUnit, false>(run, history, literals, canvas);
}

using PutFunction = bool(SequenceRun&, OffsetHistory&, const std::byte*, std::byte*, std::uint64_t*,
                         bool);

template <std::size_t kUnit>
bool PutSequencesPlain(SequenceRun& run, OffsetHistory& history, const std::byte* literals,
                       std::byte* image, std::uint64_t* mask, bool plain) {
  return PutSequences<kUnit>(run, history, literals, image, mask, plain);
}

#if defined(__x86_64__)
template <std::size_t kUnit>
[[gnu::target("bmi,bmi2")]] bool PutSequencesBmi(SequenceRun& run, OffsetHistory& history,
                                                 const std::byte* literals, std::byte* image,
                                                 std::uint64_t* mask, bool plain) {
  return PutSequences<kUnit>(run, history, literals, image, mask, plain);
}

template <std::size_t kUnit>
PutFunction* FindPut() {
  const bool bmi = __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  return bmi ? PutSequencesBmi<kUnit> : PutSequencesPlain<kUnit>;
}
#else
template <std::size_t kUnit>
PutFunction* FindPut() {
  return PutSequencesPlain<kUnit>;
}
#endif

template <std::size_t kUnit>
void PutRun(std::byte* image, std::uint64_t* mask, std::size_t at, ByteSpan bytes) {
  Canvas<kUnit>(image, mask).Put(at, bytes.data(), bytes.size());
}

}  // namespace

struct SparseFrameReader::State {
  using Outcome = SparseFrameReader::Outcome;

  // Where a block goes.
  struct Target {
    std::byte* image;
    std::uint64_t* mask;
    std::size_t unit_bytes;

    void Put(std::size_t at, ByteSpan bytes) const {
      (unit_bytes == 1 ? PutRun<1> : PutRun<2>)(image, mask, at, bytes);
    }
  };

  ByteSpan frame;
  std::size_t at = 0;  // of the next block
  std::uint64_t content_bytes = kUnknown;
  std::uint64_t produced = 0;
  std::size_t max_block = 0;
  bool ended = false;
  bool zero_before = false;  // the last byte so far is zero; false if there is none

  // As the blocks before left them.
  bool has_huffman = false;
  bool has_tables = false;
  OffsetHistory history;
  HuffmanTable huffman;
  std::array<SequenceTable, 3> own_tables;  // in the order of Kinds()
  std::array<const SequenceTable*, 3> tables = {};

  std::array<std::byte, kMaxBlock + 8> literals;  // eight more can be read
  std::size_t literal_count = 0;
  std::vector<std::byte>
      padded;  // a block so near the start of the frame that nothing readable stands before it

  Result<Outcome> Next(const Target& target, std::size_t& size);
  Result<std::size_t> Compressed(ByteSpan body, const Target& target);
  Result<std::size_t> ReadLiterals(ByteSpan body);
  Result<std::size_t> ReadTables(ByteSpan body);
  Result<std::size_t> ReadTable(ByteSpan body, std::size_t kind, unsigned mode);
};

// Reads the literals section into `literals`; returns the bytes it takes.
Result<std::size_t> SparseFrameReader::State::ReadLiterals(ByteSpan body) {
  enum Type : unsigned { kRaw, kRepeated, kHuffman, kSameHuffman };
  if (body.size() < 3) return Fail(Code::kIncompatible, "a block of less than three bytes");
  const auto first = static_cast<unsigned>(body[0]);
  const auto type = static_cast<Type>(first & 3);
  const unsigned format = first >> 2 & 3;
  const bool coded = type >= kHuffman;
  const std::size_t head =
      coded ? (format < 2 ? 3 : format + 2) : (format % 2 == 0 ? 1 : (format + 3) / 2);
  if (head > body.size()) return Fail(Code::kCorrupt, "literals: truncated");
  std::uint64_t fields = 0;
  std::memcpy(&fields, body.data(), head);
  // In bits: 3 type and format (if the size takes five), otherwise 4; then sizes.
  std::size_t coded_bytes = 0;
  if (coded) {
    const unsigned width = format < 2 ? 10 : format == 2 ? 14 : 18;
    literal_count = fields >> 4 & ((1U << width) - 1);
    coded_bytes = fields >> (4 + width) & ((1U << width) - 1);
  } else {
    literal_count = fields >> (head == 1 ? 3 : 4);
    coded_bytes = type == kRaw ? literal_count : 1;
  }
  if (literal_count > kMaxBlock) {
    return Fail(Code::kCorrupt, fmt::format("{} literals in one block", literal_count));
  }
  if (coded_bytes > body.size() - head) return Fail(Code::kCorrupt, "literals: truncated");
  ByteSpan source = body.subspan(head, coded_bytes);
  if (type == kRaw) {
    std::ranges::copy(source, literals.begin());
    return head + coded_bytes;
  }
  if (type == kRepeated) {
    std::fill_n(literals.begin(), literal_count, source[0]);
    return head + coded_bytes;
  }
  const bool four = format != 0;
  if (literal_count == 0) return Fail(Code::kIncompatible, "literals: none, but a Huffman code");
  if (four && literal_count < 6)
    return Fail(Code::kIncompatible, "literals: too few for four streams");
  if (type == kHuffman) {
    has_huffman = false;
    SYNCLINE_ASSIGN(const std::size_t table, huffman.Read(source));
    has_huffman = true;
    source = source.subspan(table);
  } else if (!has_huffman) {
    return Fail(Code::kCorrupt, "literals: no Huffman table before");
  }
  SYNCLINE_TRY(four ? huffman.DecodeFour(source, literals.data(), literal_count)
                    : huffman.DecodeOne(source, literals.data(), literal_count));
  return head + coded_bytes;
}

Result<std::size_t> SparseFrameReader::State::ReadTable(ByteSpan body, std::size_t kind_index,
                                                        unsigned mode) {
  enum Mode : unsigned { kPredefined, kOneCode, kOwn, kSame };
  const TableKind& kind = Kinds()[kind_index];
  SequenceTable& own = own_tables[kind_index];
  const SequenceTable*& table = tables[kind_index];
  switch (mode) {
    case kPredefined:
      table = &kind.predefined;
      return 0;
    case kOneCode: {
      const std::size_t code = body.empty() ? 256 : static_cast<std::size_t>(body[0]);
      if (code >= kind.codes.size()) {
        return Fail(Code::kCorrupt, fmt::format("{} table: bad code", kind.name));
      }
      own.log = 0;
      own.cells[0] = kind.codes[code];
      table = &own;
      return 1;
    }
    case kOwn: {
      FseCounts counts;
      auto bytes =
          ReadFseCounts(body, static_cast<unsigned>(kind.codes.size()) - 1, kind.max_log, counts);
      if (!bytes) return base::Annotate(std::move(bytes).error(), kind.name);
      Build(counts, kind.codes, own);
      table = &own;
      return bytes;
    }
    default:
      if (!has_tables) return Fail(Code::kCorrupt, fmt::format("{} table: none before", kind.name));
      return 0;
  }
}

// Reads the three tables of the sequences; returns the bytes they take.
Result<std::size_t> SparseFrameReader::State::ReadTables(ByteSpan body) {
  if (body.empty()) return Fail(Code::kCorrupt, "sequences: truncated");
  const auto modes = static_cast<unsigned>(body[0]);
  if ((modes & 3) != 0) return Fail(Code::kIncompatible, "sequences: reserved bits are set");
  std::size_t at_table = 1;
  for (std::size_t kind = 0; kind < 3; ++kind) {
    SYNCLINE_ASSIGN(const std::size_t bytes,
                    ReadTable(body.subspan(at_table), kind, modes >> (6 - 2 * kind) & 3));
    at_table += bytes;
  }
  has_tables = true;
  return at_table;
}

// Decodes a compressed block; returns the size of its content.
Result<std::size_t> SparseFrameReader::State::Compressed(ByteSpan body, const Target& target) {
  SYNCLINE_ASSIGN(const std::size_t literal_bytes, ReadLiterals(body));
  ByteSpan rest = body.subspan(literal_bytes);
  if (rest.empty()) return Fail(Code::kCorrupt, "sequences: missing");
  SequenceRun run{.count = static_cast<std::size_t>(rest[0]),
                  .literals = literal_count,
                  .limit = max_block,
                  .zero_before = zero_before};
  const std::size_t count_bytes = run.count < 128 ? 1 : run.count < 255 ? 2 : 3;
  if (rest.size() < count_bytes) return Fail(Code::kCorrupt, "sequences: truncated");
  if (count_bytes == 2) run.count = (run.count - 128) << 8 | static_cast<std::size_t>(rest[1]);
  if (count_bytes == 3) run.count = 0x7f00U + Load<std::uint16_t>(&rest[1]);
  rest = rest.subspan(count_bytes);
  if (run.count == 0) {
    if (count_bytes > 1) return Fail(Code::kIncompatible, "sequences: none, in two bytes");
    if (!rest.empty())
      return Fail(Code::kCorrupt,
                  fmt::format("{} bytes follow a block without sequences", rest.size()));
  } else {
    SYNCLINE_ASSIGN(const std::size_t table_bytes, ReadTables(rest));
    run.literal_lengths = tables[0];
    run.offsets = tables[1];
    run.match_lengths = tables[2];
    if (!run.bits.Open(rest.subspan(table_bytes))) {
      return Fail(Code::kCorrupt, "sequences: no end mark");
    }
    static PutFunction* const put[] = {FindPut<1>(), FindPut<2>()};
    const unsigned offset_value = run.offsets->cells[0].value();
    const bool plain =
        run.offsets->log == 0 && ((offset_value == 1 && history.last() == 1) || offset_value == 4);
    if (!put[target.unit_bytes - 1](run, history, literals.data(), target.image, target.mask,
                                    plain)) {
      return Fail(Code::kIncompatible, "sequences: not all repeat zeros");
    }
  }
  const std::size_t left = literal_count - run.literals_used;
  if (left > max_block - run.size) return Fail(Code::kIncompatible, "the block is too large");
  if (left > 0) target.Put(run.size, std::span(literals).subspan(run.literals_used, left));
  if (run.size + left == 0) return Fail(Code::kIncompatible, "a compressed block without content");
  zero_before = left == 0 || literals[literal_count - 1] == std::byte{0};
  return run.size + left;
}

Result<SparseFrameReader::Outcome> SparseFrameReader::State::Next(const Target& target,
                                                                  std::size_t& size) {
  enum Type : unsigned { kRaw, kRepeated, kCompressed };
  size = 0;
  if (ended) {
    if (at != frame.size()) {
      return Fail(Code::kCorrupt, fmt::format("{} bytes follow the zstd frame", frame.size() - at));
    }
    if (content_bytes != kUnknown && produced != content_bytes) {
      return Fail(Code::kCorrupt,
                  fmt::format("the frame decompresses to {} bytes, not to the {} that it says",
                              produced, content_bytes));
    }
    return Outcome::kEnd;
  }
  if (frame.size() - at < 3)
    return Fail(Code::kCorrupt, "the zstd frame is truncated: no last block");
  const std::uint32_t header = Load24(&frame[at]);
  at += 3;
  ended = (header & 1) != 0;
  const unsigned type = header >> 1 & 3;
  const std::size_t field = header >> 3;
  const std::size_t body_bytes = type == kRepeated ? 1 : field;
  if (type > kCompressed) return Fail(Code::kCorrupt, "damaged zstd frame: block type 3");
  if (body_bytes > frame.size() - at) return Fail(Code::kCorrupt, "the zstd frame is truncated");
  if (field > max_block) return Fail(Code::kIncompatible, "the block is too large");
  ByteSpan body = frame.subspan(at, body_bytes);
  if (type == kCompressed) {
    if (at < static_cast<std::size_t>(kBytesBefore)) {
      padded.assign(static_cast<std::size_t>(kBytesBefore), std::byte{0});
      padded.insert(padded.end(), body.begin(), body.end());
      body = std::span(padded).subspan(kBytesBefore);
    }
    SYNCLINE_ASSIGN(size, Compressed(body, target));
  } else if (type == kRaw) {
    size = field;
    target.Put(0, body);
    if (size > 0) zero_before = body.back() == std::byte{0};
  } else {
    size = field;
    if (body[0] != std::byte{0}) {
      std::fill_n(literals.begin(), size, body[0]);
      target.Put(0, std::span(literals).first(size));
    }
    if (size > 0) zero_before = body[0] == std::byte{0};
  }
  at += body_bytes;
  produced += size;
  if (content_bytes != kUnknown && produced > content_bytes) {
    return Fail(Code::kCorrupt,
                fmt::format("the frame decompresses to more than the {} bytes that it says",
                            content_bytes));
  }
  if (size % target.unit_bytes != 0 && !ended) return Outcome::kNotSparse;
  return Outcome::kBlock;
}

std::optional<SparseFrameReader> SparseFrameReader::Open(ByteSpan frame) {
  constexpr std::uint32_t kMagic = 0xfd2fb528;
  constexpr unsigned kMaxWindowLog = 27;  // the library refuses more
  if (frame.size() < 6 || Load<std::uint32_t>(frame.data()) != kMagic) return std::nullopt;
  const auto descriptor = static_cast<unsigned>(frame[4]);
  // Any of: a dictionary, a checksum, the two bits that mean nothing.
  if ((descriptor & 0x1f) != 0) return std::nullopt;
  const bool single_segment = (descriptor & 0x20) != 0;
  const unsigned size_code = descriptor >> 6;
  const std::size_t size_bytes =
      size_code == 0 ? (single_segment ? 1 : 0) : std::size_t{1} << size_code;
  const std::size_t head = 5 + (single_segment ? 0 : 1) + size_bytes;
  if (frame.size() < head) return std::nullopt;

  auto state = std::make_unique_for_overwrite<State>();
  if (size_bytes > 0) {
    std::uint64_t size = 0;
    std::memcpy(&size, &frame[head - size_bytes], size_bytes);
    state->content_bytes = size + (size_bytes == 2 ? 256 : 0);
  }
  std::uint64_t window = state->content_bytes;
  if (!single_segment) {
    const auto byte = static_cast<unsigned>(frame[5]);
    window = std::uint64_t{8 + (byte & 7)} << (byte >> 3) << 7;
  }
  if (window > std::uint64_t{1} << kMaxWindowLog) return std::nullopt;
  state->frame = frame;
  state->at = head;
  state->max_block = static_cast<std::size_t>(std::min<std::uint64_t>(window, kMaxBlock));
  return SparseFrameReader(std::move(state));
}

SparseFrameReader::SparseFrameReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
SparseFrameReader::~SparseFrameReader() = default;
SparseFrameReader::SparseFrameReader(SparseFrameReader&&) noexcept = default;
SparseFrameReader& SparseFrameReader::operator=(SparseFrameReader&&) noexcept = default;

std::uint64_t SparseFrameReader::content_bytes() const { return state_->content_bytes; }

Result<SparseFrameReader::Outcome> SparseFrameReader::NextBlock(std::byte* image,
                                                                std::uint64_t* mask,
                                                                std::size_t unit_bytes,
                                                                std::size_t& size) {
  auto outcome = state_->Next({image, mask, unit_bytes}, size);
  if (!outcome && outcome.error().code == Code::kIncompatible) return Outcome::kNotSparse;
  return outcome;
}

}  // namespace syncline::delta
