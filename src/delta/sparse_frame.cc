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
    for (; n > step; step = kShortRun - (kUnit - 1)) {
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

// ---- Sequences.

// A state of one of the three FSE tables. Each field is read from memory by itself: machines load more easily than they shift.
struct Cell {
  // What the state says is its value plus the next extra_bits bits; the next state is next_state plus the state_bits bits after those.
  std::uint16_t next_state = 0;
  std::uint8_t state_bits = 0;
  std::uint8_t extra_bits = 0;
  // The value times 256, and by how much to shift a word right to get all those bits: 64 less their number, or 0 if there are none. Can be
  // added for two cells; to a shift only the lowest six bits matter.
  std::uint32_t value_and_shift = 0;

  static constexpr Cell Of(std::uint32_t value, unsigned extra_bits) {
    return {.extra_bits = static_cast<std::uint8_t>(extra_bits),
            .value_and_shift = value << 8 | (-extra_bits & 63)};
  }
  constexpr Cell To(unsigned to_state, unsigned to_bits) const {
    return {.next_state = static_cast<std::uint16_t>(to_state),
            .state_bits = static_cast<std::uint8_t>(to_bits),
            .extra_bits = extra_bits,
            .value_and_shift = value() << 8 | (-(extra_bits + to_bits) & 63)};
  }
  constexpr std::uint32_t value() const { return value_and_shift >> 8; }
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
  for (unsigned i = 0; i < plain; ++i) codes.push_back(Cell::Of(first++, 0));
  for (const unsigned bits : extra_bits) {
    codes.push_back(Cell::Of(first, bits));
    first += 1U << bits;
  }
  return codes;
}

std::vector<Cell> OffsetCodes() {
  std::vector<Cell> codes;
  // Of the others only the number of bits is used.
  for (unsigned code = 0; code < 32; ++code)
    codes.push_back(Cell::Of(code < 3 ? 1U << code : 0, code));
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
  // Whether the last offset is 1, and whether the one before it is, too.
  bool LastIsOne() const { return last_[0] == 1; }
  bool LastTwoAreOne() const { return last_[0] == 1 && last_[1] == 1; }

 private:
  std::array<std::uint64_t, 3> last_ = {1, 4, 8};
};

// The sequences of one block. They are decoded a batch at a time, then the literals of the batch
// are put in their places.
struct Sequences {
  static constexpr std::size_t kBatch = 256;

  std::array<const SequenceTable*, 3> tables = {};
  BackwardBits bits = {};
  OffsetHistory history = {};
  std::size_t left = 0;                      // to decode
  std::array<std::uint64_t, 3> states = {};  // of the next sequence

  std::size_t batch_size = 0;
  std::array<std::uint32_t, kBatch> batch_literals;
  std::array<std::uint32_t, kBatch> batch_bytes;  // literals and match
};

// Indices of tables and states.
enum : std::size_t { kLiteralLength, kOffset, kMatchLength };

enum class Offsets : std::uint8_t {
  kSame,  // all have code 0: the last offset again, which is 1, or the one before it if there are no literals
  kOne,  // all have code 2; with two zero bits it stands for offset 1
  kAny,
};

// Decodes the next batch. False unless all offsets in it are 1; the library has to look at the
// frame then.
template <Offsets kOffsets>
[[gnu::always_inline]] inline bool DecodeBatch(Sequences& s) {
  const Cell* const literal_lengths = s.tables[kLiteralLength]->cells.data();
  const Cell* const offsets = s.tables[kOffset]->cells.data();
  const Cell* const match_lengths = s.tables[kMatchLength]->cells.data();
  BackwardBits bits = s.bits;
  auto [l_state, o_state, m_state] = s.states;
  const std::size_t size = std::min(s.left, Sequences::kBatch);
  std::uint64_t offset_bits = 0;  // in the two highest bits, any that was set
  std::uint64_t no_literals = 0;  // the highest bit is set if there was a sequence without

  // All but the states. At most 2 + 16 + 16 bits are taken, and 9 + 9 later.
  const auto read = [&](std::size_t i, const Cell& l, const Cell& o,
                        const Cell& m) __attribute__((always_inline)) {
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
    s.batch_literals[i] = static_cast<std::uint32_t>(literals);
    s.batch_bytes[i] = static_cast<std::uint32_t>(literals + m.value() + (extra >> l.extra_bits));
    if constexpr (kOffsets == Offsets::kSame) no_literals |= literals - 1;
    if constexpr (kOffsets == Offsets::kAny) {
      if (s.history.Resolve(offset, literals != 0) != 1) return false;
    }
    return true;
  };

  // The states are not updated after the very last sequence.
  const std::size_t updated = size - (size == s.left ? 1 : 0);
  for (std::size_t i = 0; i < updated; ++i) {
    const Cell l = literal_lengths[l_state];
    const Cell o = offsets[o_state];
    const Cell m = match_lengths[m_state];
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
    const Cell l = literal_lengths[l_state];
    const Cell m = match_lengths[m_state];
    if (!read(updated, l, offsets[o_state], m)) return false;
    bits.Skip(l.extra_bits + m.extra_bits);
  }
  s.bits = bits;
  s.states = {l_state, o_state, m_state};
  s.left -= size;
  s.batch_size = size;
  return offset_bits >> 62 == 0 && (no_literals >> 63 == 0 || s.history.LastTwoAreOne());
}

// Puts the literals of a batch in their places; the block goes on at `at`. The byte before `from`
// can be read. Returns the bytes that the matches repeat, put together by "or".
template <typename Writer>
[[gnu::always_inline]] inline std::byte PutBatch(const Sequences& s, const std::byte* from,
                                                 std::size_t at, Writer writer) {
  std::byte repeated{0};
  for (std::size_t i = 0; i < s.batch_size; ++i) {
    const std::size_t n = s.batch_literals[i];
    if (n <= kShortRun) [[likely]] {
      writer.PutShort(at, from, n);
    } else {
      writer.PutLong(at, from, n);
    }
    at += s.batch_bytes[i];
    from += n;
    repeated |= from[-1];
  }
  return repeated;
}

// The two steps above, in the best version for this machine.
struct SequenceFunctions {
  bool (*decode[3])(Sequences&);  // by Offsets
  std::byte (*put)(const Sequences&, const std::byte* from, std::size_t at, ImageWriter);
  std::byte (*put_units_of_1)(const Sequences&, const std::byte* from, std::size_t at,
                              MarkingWriter<1>);
  std::byte (*put_units_of_2)(const Sequences&, const std::byte* from, std::size_t at,
                              MarkingWriter<2>);
};

template <Offsets kOffsets>
bool DecodePlain(Sequences& s) {
  return DecodeBatch<kOffsets>(s);
}
template <typename Writer>
std::byte PutPlain(const Sequences& s, const std::byte* from, std::size_t at, Writer writer) {
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
[[gnu::target("bmi,bmi2")]] bool DecodeBmi(Sequences& s) {
  return DecodeBatch<kOffsets>(s);
}
template <typename Writer>
[[gnu::target("bmi,bmi2")]] std::byte PutBmi(const Sequences& s, const std::byte* from,
                                             std::size_t at, Writer writer) {
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

struct SparseFrameReader::State {
  using Outcome = SparseFrameReader::Outcome;

  // Where a block goes. Many literals are written first and looked for afterwards, few are marked
  // one by one.
  struct Target {
    std::byte* image;
    std::uint64_t* mask;
    std::size_t unit_bytes;
    bool many = true;

    std::byte PutBatch(const Sequences& s, const std::byte* from, std::size_t at) const {
      if (many) return Functions().put(s, from, at, {image});
      return unit_bytes == 1 ? Functions().put_units_of_1(s, from, at, {image, mask})
                             : Functions().put_units_of_2(s, from, at, {image, mask});
    }
    void PutLast(const std::byte* from, std::size_t n, std::size_t at) const {
      if (many) {
        ImageWriter{image}.PutLong(at, from, n);
        // An odd block ends with half a unit.
        const std::size_t whole = (at + n + unit_bytes - 1) / unit_bytes * unit_bytes;
        tensor::NonZeroMask(image, whole, unit_bytes, mask);
      } else if (unit_bytes == 1) {
        MarkingWriter<1>{image, mask}.PutLong(at, from, n);
      } else {
        MarkingWriter<2>{image, mask}.PutLong(at, from, n);
      }
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
  HuffmanTable huffman;
  std::array<SequenceTable, 3> own_tables;  // in the order of Kinds()
  Sequences sequences;

  std::size_t literal_count = 0;
  // With a zero before, and eight more that can be read.
  std::array<std::byte, 1 + kMaxBlock + 8> literal_buffer;
  std::byte* literals() { return literal_buffer.data() + 1; }
  // A block so near to the start of the frame that too few readable bytes stand before it.
  std::vector<std::byte> padded;

  Result<Outcome> Next(const Target& target, std::size_t& size);
  Result<std::size_t> Compressed(ByteSpan body, Target target);
  Result<std::size_t> ReadLiterals(ByteSpan body);
  Result<std::size_t> ReadTables(ByteSpan body);
  Result<std::size_t> ReadTable(ByteSpan body, std::size_t kind, unsigned mode);
  bool PutSequences(const Target& target, std::size_t& literals_used, std::size_t& size);
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
    std::ranges::copy(source, literals());
    return head + coded_bytes;
  }
  if (type == kRepeated) {
    std::fill_n(literals(), literal_count, source[0]);
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
  SYNCLINE_TRY(four ? huffman.DecodeFour(source, literals(), literal_count)
                    : huffman.DecodeOne(source, literals(), literal_count));
  return head + coded_bytes;
}

Result<std::size_t> SparseFrameReader::State::ReadTable(ByteSpan body, std::size_t kind_index,
                                                        unsigned mode) {
  enum Mode : unsigned { kPredefined, kOneCode, kOwn, kSame };
  const TableKind& kind = Kinds()[kind_index];
  SequenceTable& own = own_tables[kind_index];
  const SequenceTable*& table = sequences.tables[kind_index];
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

// Decodes all sequences and puts their literals in their places. False if the library has to look
// at the frame.
bool SparseFrameReader::State::PutSequences(const Target& target, std::size_t& literals_used,
                                            std::size_t& size) {
  const auto& [literal_lengths, offset_table, match_lengths] = sequences.tables;
  const Cell offset = offset_table->cells[0];
  Offsets offsets = Offsets::kAny;
  if (offset_table->log == 0 && offset.value() == 1 && sequences.history.LastIsOne())
    offsets = Offsets::kSame;
  if (offset_table->log == 0 && offset.value() == 4) offsets = Offsets::kOne;
  const std::size_t count = sequences.left;
  BackwardBits& bits = sequences.bits;
  bits.Refill();
  for (std::size_t i = 0; i < 3; ++i) {
    sequences.states[i] = bits.Take(sequences.tables[i]->log);
  }
  while (sequences.left > 0) {
    if (!Functions().decode[static_cast<std::size_t>(offsets)](sequences)) return false;
    std::uint32_t batch_literals = 0;
    std::uint32_t batch_bytes = 0;
    for (std::size_t i = 0; i < sequences.batch_size; ++i) {
      batch_literals += sequences.batch_literals[i];
      batch_bytes += sequences.batch_bytes[i];
    }
    if (batch_literals > literal_count - literals_used || batch_bytes > max_block - size)
      return false;
    if (size == 0 && sequences.batch_literals[0] == 0 && !zero_before) return false;
    if (target.PutBatch(sequences, literals() + literals_used, size) != std::byte{0}) return false;
    literals_used += batch_literals;
    size += batch_bytes;
  }
  if (offsets == Offsets::kOne) {
    // Three of them or more leave the same history.
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 3); ++i)
      sequences.history.Resolve(4, true);
  }
  return bits.AtEnd();
}

// Decodes a compressed block; returns the size of its content.
Result<std::size_t> SparseFrameReader::State::Compressed(ByteSpan body, Target target) {
  SYNCLINE_ASSIGN(const std::size_t literal_bytes, ReadLiterals(body));
  ByteSpan rest = body.subspan(literal_bytes);
  if (rest.empty()) return Fail(Code::kCorrupt, "sequences: missing");
  auto count = static_cast<std::size_t>(rest[0]);
  const std::size_t count_bytes = count < 128 ? 1 : count < 255 ? 2 : 3;
  if (rest.size() < count_bytes) return Fail(Code::kCorrupt, "sequences: truncated");
  if (count_bytes == 2) count = (count - 128) << 8 | static_cast<std::size_t>(rest[1]);
  if (count_bytes == 3) count = 0x7f00U + Load<std::uint16_t>(&rest[1]);
  rest = rest.subspan(count_bytes);
  std::size_t literals_used = 0;
  std::size_t size = 0;
  if (count > 0) {
    SYNCLINE_ASSIGN(const std::size_t table_bytes, ReadTables(rest));
    if (!sequences.bits.Open(rest.subspan(table_bytes))) {
      return Fail(Code::kCorrupt, "sequences: no end mark");
    }
    sequences.left = count;
    constexpr std::size_t kMany = 500;
    target.many = count > kMany || literal_count > 4 * kMany;
    if (!PutSequences(target, literals_used, size)) {
      return Fail(Code::kIncompatible, "sequences: not all repeat zeros");
    }
  } else if (count_bytes > 1) {
    return Fail(Code::kIncompatible, "sequences: none, in two bytes");
  } else if (!rest.empty()) {
    return Fail(Code::kCorrupt,
                fmt::format("{} bytes follow a block without sequences", rest.size()));
  }
  const std::size_t left = literal_count - literals_used;
  if (left > max_block - size) return Fail(Code::kIncompatible, "the block is too large");
  if (size + left == 0) return Fail(Code::kIncompatible, "a compressed block without content");
  target.PutLast(literals() + literals_used, left, size);
  zero_before = left == 0 || literals()[literal_count - 1] == std::byte{0};
  return size + left;
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
    target.PutLast(body.data(), size, 0);
    if (size > 0) zero_before = body.back() == std::byte{0};
  } else {
    size = field;
    if (body[0] != std::byte{0}) {  // otherwise there is nothing to do
      std::fill_n(literals(), size, body[0]);
      target.PutLast(literals(), size, 0);
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
  state->literal_buffer[0] = std::byte{0};
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
  auto outcome = state_->Next({.image = image, .mask = mask, .unit_bytes = unit_bytes}, size);
  if (!outcome && outcome.error().code == Code::kIncompatible) return Outcome::kNotSparse;
  return outcome;
}

}  // namespace syncline::delta
