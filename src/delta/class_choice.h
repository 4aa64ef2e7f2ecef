// Chooses how changes are coded, from a sample of them: the base of the classes, and what the class
// form and the gap form would take (docs/format.md, "Classes").
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "delta/step_code.h"
#include "delta/unit_kind.h"

namespace syncline::delta {

// Units of one kind as they were and as they become.
class StepSample {
 public:
  explicit StepSample(UnitKind kind);

  UnitKind kind() const { return kind_; }
  std::uint64_t units() const { return units_; }

  // Adds all units of two images of the same piece.
  void Add(base::ByteSpan old_bytes, base::ByteSpan new_bytes);

  // Entropies of positions and steps, for the units of the sample.
  struct Choice {
    unsigned base = 0;      // of the classes: the one that takes the fewest bits
    double class_bits = 0;  // with it
    double gap_bits = 0;
    double changed = 0;
  };
  Choice Choose() const;

 private:
  // Units with one exponent, or some.
  struct Group {
    double units = 0;
    double changed = 0;
    double extra_bits = 0;
    std::array<double, kTokens> tokens = {};  // of the steps

    Group& operator+=(const Group& other);
    double Bits() const;
  };

  UnitKind kind_;
  std::uint64_t units_ = 0;
  std::vector<Group> groups_;  // by exponent; one of plain units
};

}  // namespace syncline::delta
