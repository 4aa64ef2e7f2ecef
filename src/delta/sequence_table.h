// The tables that the sequences of a zstd block are decoded with (RFC 8878, section 3.1.1.3.2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/zstd_entropy.h"

namespace syncline::delta {

// A state of a table. Each field is read from memory by itself: machines load more easily than they
// shift.
struct SequenceCell {
  // What the state says is its value plus the next extra_bits bits; the next state is next_state
  // plus the state_bits bits after those.
  std::uint16_t next_state = 0;
  std::uint8_t state_bits = 0;
  std::uint8_t extra_bits = 0;
  // The value times 256, and by how much to shift a word right to get all those bits: 64 less their
  // number, or 0 if there are none. Can be added for two cells; to a shift only the lowest six bits
  // matter.
  std::uint32_t value_and_shift = 0;

  static constexpr SequenceCell Of(std::uint32_t value, unsigned extra_bits) {
    return {.extra_bits = static_cast<std::uint8_t>(extra_bits),
            .value_and_shift = value << 8 | (-extra_bits & 63)};
  }
  constexpr SequenceCell To(unsigned to_state, unsigned to_bits) const {
    return {.next_state = static_cast<std::uint16_t>(to_state),
            .state_bits = static_cast<std::uint8_t>(to_bits),
            .extra_bits = extra_bits,
            .value_and_shift = value() << 8 | (-(extra_bits + to_bits) & 63)};
  }
  constexpr std::uint32_t value() const { return value_and_shift >> 8; }
};

struct SequenceTable {
  std::array<SequenceCell, 1 << kMaxFseLog> cells;
  unsigned log = 0;
};

// What the states of a table say.
enum SequencePart : std::size_t { kLiteralLength, kOffset, kMatchLength };

// The three tables of a block. Of an offset code above 2 the cells have only the extra bits.
class SequenceTables {
 public:
  // Reads how the tables of a block are given, and those that are written there; returns the bytes
  // they take. After an error the tables are void.
  base::Result<std::size_t> Read(base::ByteSpan from);

  const SequenceTable& operator[](SequencePart part) const { return *tables_[part]; }

 private:
  base::Result<std::size_t> ReadOne(base::ByteSpan from, std::size_t part, unsigned mode);

  bool has_tables_ = false;  // of a block before
  std::array<const SequenceTable*, 3> tables_ = {};
  std::array<SequenceTable, 3> own_;
};

}  // namespace syncline::delta
