// The inner loops of the compact encoding, on one block of units (docs/format.md, "Change stream"):
// what differs, which class each unit is in, where the changes of a class are. The widest vectors of
// the machine are used; every machine gives the same result.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/step_code.h"
#include "delta/unit_kind.h"
#include "delta/zstd_entropy.h"

namespace syncline::delta {

inline constexpr std::size_t kStepBlockUnits = 4096;
inline constexpr std::size_t kStepBlockWords = kStepBlockUnits / 64;

// A bit for each unit of a block.
using UnitMask = std::array<std::uint64_t, kStepBlockWords>;

// One change, as the scanner found it.
struct Change {
  std::uint32_t gap_and_class;  // gap * 16 + class
  std::uint32_t step;           // the key after less the key before, modulo 2^bits

  std::uint32_t gap() const { return gap_and_class / kMaxClasses; }
  std::uint32_t class_number() const { return gap_and_class % kMaxClasses; }
};

struct ClassRule {
  UnitKind kind = UnitKind::kPlain8;
  unsigned classes = 1;
  unsigned base = 0;
};

// Units of each class since its last change.
using ClassCounts = std::array<std::uint32_t, kMaxClasses>;

// Compares the next block of at most kStepBlockUnits units. Writes its changes, by class and
// position, to `out`, which has room for one each, and returns how many they are. `since` is brought
// up to date; bits of `changed` beyond the units are zero.
std::size_t ScanBlock(const std::byte* old_units, const std::byte* new_units, std::size_t units,
                      const ClassRule& rule, ClassCounts& since, Change* out, UnitMask& changed);

// Reads a change stream.
struct StepReader {
  static constexpr std::uint32_t kNone = 0xFFFF'FFFF;

  const StepDecodeTables* tables = nullptr;
  BackwardBits bits;
  std::uint32_t gap_state = 0;
  std::uint32_t step_state = 0;
  ClassCounts rest = {};  // units of the class before its next change; kNone: there is none

  // `stream` has kBytesBefore readable bytes before it. kCorrupt if it is none.
  base::Status Open(const StepDecodeTables& with, base::ByteSpan stream);
  // kCorrupt if there is more, or the end is not one.
  base::Status Finish() const;
};

// Reads the changes of the next block, whose units are `old_units`: sets their bits in `changed`, and
// writes the new values into their places in `new_units`, which may be `old_units`. kCorrupt if the
// stream ends too early.
base::Status ReadBlock(const std::byte* old_units, std::size_t units, UnitKind kind,
                       StepReader& reader, std::byte* new_units, UnitMask& changed);

}  // namespace syncline::delta
