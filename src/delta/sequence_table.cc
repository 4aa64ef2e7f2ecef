#include "delta/sequence_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Result;

// What is the same for all tables of a part.
struct TableKind {
  const char* name;
  unsigned max_log;
  std::vector<SequenceCell> codes;
  SequenceTable predefined;
};

void Build(const FseCounts& counts, const std::vector<SequenceCell>& codes, SequenceTable& table) {
  table.log = counts.log;
  ForEachFseState(counts, [&](unsigned state, unsigned symbol, unsigned bits, unsigned base) {
    table.cells[state] = codes[symbol].To(base, bits);
  });
}

TableKind MakeKind(const char* name, unsigned max_log, std::vector<SequenceCell> codes,
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
std::vector<SequenceCell> LengthCodes(std::uint32_t first, unsigned plain,
                                      std::initializer_list<unsigned> extra_bits) {
  std::vector<SequenceCell> codes;
  codes.reserve(plain + extra_bits.size());
  for (unsigned i = 0; i < plain; ++i) codes.push_back(SequenceCell::Of(first++, 0));
  for (const unsigned bits : extra_bits) {
    codes.push_back(SequenceCell::Of(first, bits));
    first += 1U << bits;
  }
  return codes;
}

std::vector<SequenceCell> OffsetCodes() {
  constexpr unsigned kCodes = 32;
  std::vector<SequenceCell> codes;
  codes.reserve(kCodes);
  for (unsigned code = 0; code < kCodes; ++code) {
    codes.push_back(SequenceCell::Of(code <= 2 ? 1U << code : 0, code));
  }
  return codes;
}

// In the order of SequencePart.
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

}  // namespace

Result<std::size_t> SequenceTables::Read(ByteSpan from) {
  if (from.empty()) return Fail(Code::kCorrupt, "sequences: truncated");
  const auto modes = static_cast<unsigned>(from[0]);
  if ((modes & 3) != 0) return Fail(Code::kIncompatible, "sequences: reserved bits are set");
  std::size_t at = 1;
  for (const SequencePart part : {kLiteralLength, kOffset, kMatchLength}) {
    SYNCLINE_ASSIGN(const std::size_t bytes,
                    ReadOne(from.subspan(at), part, modes >> (6 - 2 * part) & 3));
    at += bytes;
  }
  has_tables_ = true;
  return at;
}

Result<std::size_t> SequenceTables::ReadOne(ByteSpan from, std::size_t part, unsigned mode) {
  enum Mode : unsigned { kPredefined, kOneCode, kOwn, kSame };
  const TableKind& kind = Kinds()[part];
  SequenceTable& own = own_[part];
  switch (mode) {
    case kPredefined:
      tables_[part] = &kind.predefined;
      return 0;
    case kOneCode: {
      const std::size_t code = from.empty() ? 256 : static_cast<std::size_t>(from[0]);
      if (code >= kind.codes.size()) {
        return Fail(Code::kCorrupt, fmt::format("{} table: bad code", kind.name));
      }
      own.log = 0;
      own.cells[0] = kind.codes[code];
      tables_[part] = &own;
      return 1;
    }
    case kOwn: {
      FseCounts counts;
      auto bytes =
          ReadFseCounts(from, static_cast<unsigned>(kind.codes.size()) - 1, kind.max_log, counts);
      if (!bytes) return base::Annotate(std::move(bytes).error(), kind.name);
      Build(counts, kind.codes, own);
      tables_[part] = &own;
      return bytes;
    }
    default:
      if (!has_tables_) {
        return Fail(Code::kCorrupt, fmt::format("{} table: none before", kind.name));
      }
      return 0;
  }
}

}  // namespace syncline::delta
