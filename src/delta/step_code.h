// The code of gaps and steps in change streams (docs/format.md, "Codes" and "Model"): tokens, the
// models that hold how frequent they are, and the tables made of them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "delta/unit_kind.h"
#include "delta/varint.h"
#include "delta/zstd_entropy.h"

namespace syncline::delta {

inline constexpr std::size_t kMaxClasses = 16;
inline constexpr std::size_t kTokens = 128;  // all symbols are below
inline constexpr unsigned kGapLog = 10;      // of the number of states of a gap table
inline constexpr unsigned kStepLog = 9;
inline constexpr std::uint32_t kMaxGap = (1 << 24) - 1;
inline constexpr std::uint32_t kEndSymbol = 0;  // of a gap table: the class has no further change

struct Token {
  std::uint32_t token;
  std::uint32_t extra_bits;
  std::uint32_t extra;
};
constexpr Token ToToken(std::uint32_t value) {
  if (value < 8) return {value, 0, 0};
  const auto e = static_cast<std::uint32_t>(std::bit_width(value)) - 1;
  const std::uint32_t bits = e - 2;
  return {8 + 4 * (e - 3) + ((value >> bits) & 3), bits, value & ((1U << bits) - 1)};
}
constexpr std::uint32_t ExtraBits(std::uint32_t token) {
  return token < 8 ? 0 : 1 + (token - 8) / 4;
}
// The least value of a token.
constexpr std::uint32_t TokenBase(std::uint32_t token) {
  return token < 8 ? token : (4 | (token & 3)) << ExtraBits(token);
}

inline constexpr std::array<std::uint32_t, kTokens> kTokenBases = [] {
  std::array<std::uint32_t, kTokens> bases = {};
  for (std::uint32_t token = 0; token < kTokens; ++token) {
    bases[token] = ExtraBits(token) <= 29 ? TokenBase(token) : 0;
  }
  return bases;
}();

// A step's size and direction: the least token for +1 and -1.
template <typename Unit>
constexpr Token StepToken(Unit step) {
  constexpr unsigned kTop = 8 * sizeof(Unit) - 1;
  const std::uint32_t negative = static_cast<std::uint32_t>(step >> kTop);
  const auto size = static_cast<Unit>(negative != 0 ? static_cast<Unit>(-step) : step);
  Token token = ToToken(static_cast<std::uint32_t>(size) - 1);
  token.extra |= negative << token.extra_bits;
  ++token.extra_bits;
  return token;
}

using Counts = std::array<std::uint32_t, kTokens>;

// How often each symbol occurs, for each class.
struct StepCounts {
  std::array<Counts, kMaxClasses> gaps = {};
  std::array<Counts, kMaxClasses> steps = {};

  StepCounts& operator+=(const StepCounts& other);
};

struct StepModel {
  unsigned classes = 1;  // or kMaxClasses
  unsigned base = 0;     // exponent of class 0
  // Each table adds up to 2^kGapLog and 2^kStepLog, or is all zero: there is none.
  std::array<Counts, kMaxClasses> gaps = {};
  std::array<Counts, kMaxClasses> steps = {};

  // The model that codes `counts` in the fewest bits.
  static StepModel Of(const StepCounts& counts, unsigned classes, unsigned base);
  // Bits that the symbols of `counts` take, without their extra bits; infinite where it lacks one.
  double Cost(const StepCounts& counts) const;

  bool operator==(const StepModel&) const = default;
};

void AppendModel(const StepModel& model, std::vector<std::byte>& out);
// kCorrupt where it is cut short, or a table does not add up.
base::Result<StepModel> ReadModel(ByteReader& from);

// What the states of a table say, in one word: next state (10 bits), bits of the next state (4),
// extra bits (5), symbol (7). Tables of steps count the sign among the extra bits.
struct CodeCell {
  std::uint32_t word;

  std::uint32_t next() const { return word & 1023; }
  unsigned state_bits() const { return word >> 10 & 15; }
  unsigned extra_bits() const { return word >> 14 & 31; }
  std::uint32_t symbol() const { return word >> 19; }
};

// A model ready for reading. Large (some 100 KiB).
struct StepDecodeTables {
  std::array<std::array<CodeCell, 1 << kGapLog>, kMaxClasses> gaps;
  std::array<std::array<CodeCell, 1 << kStepLog>, kMaxClasses> steps;
  unsigned classes = 1;
  unsigned base = 0;

  // kCorrupt where the model has symbols that no unit of that kind can have, or classes that it has
  // not.
  static base::Status Check(const StepModel& model, UnitKind kind);
  explicit StepDecodeTables(const StepModel& model);
};

// A table ready for writing (the reverse of RFC 8878, section 4.1).
class StepEncodeTable {
 public:
  StepEncodeTable() = default;
  StepEncodeTable(const Counts& counts, unsigned log);

  struct Bits {
    std::uint32_t value;
    unsigned bits;
  };
  // Goes from `state` (which counts from 0) to the one from which a reader, having read `symbol`,
  // comes back by the returned bits.
  Bits Put(std::uint32_t symbol, std::uint32_t& state) const {
    const std::uint32_t full = state + size_;
    const unsigned bits = (full + delta_bits_[symbol]) >> 16;
    const Bits out = {full & ((1U << bits) - 1), bits};
    state = next_[(full >> bits) + delta_place_[symbol]];
    return out;
  }

 private:
  std::uint32_t size_ = 0;
  std::array<std::uint32_t, kTokens> delta_bits_ = {};
  std::array<std::uint32_t, kTokens> delta_place_ = {};  // wraps
  std::vector<std::uint16_t> next_;                      // states, counted from 0
};

struct StepEncodeTables {
  std::array<StepEncodeTable, kMaxClasses> gaps;
  std::array<StepEncodeTable, kMaxClasses> steps;

  explicit StepEncodeTables(const StepModel& model);
};

}  // namespace syncline::delta
