// Which versions of a store lead to a target.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replica/state.h"
#include "store/source.h"

namespace syncline::replica {

struct Plan {
  enum class Start {
    kHeld,         // what the replica holds
    kFullVersion,  // `start`, which is full
    kFullCopy,     // the full copy of `start`, which is a delta
    kSeed,         // `seed`, which is version 0
  };
  Start kind = Start::kHeld;
  store::Described start;
  std::string seed;
  std::vector<store::Described> deltas;  // after the start, in the order of their use
  std::uint64_t bytes = 0;               // to be read from the store

  // Which part of `start` is the checkpoint to begin with.
  store::Part start_part() const {
    return kind == Start::kFullCopy ? store::Part::kFullCopy : store::Part::kVersion;
  }
  std::uint64_t start_version() const { return kind == Start::kSeed ? 0 : start.number; }
};

// Walks from the target down its bases to the version that is held (of the same run), a full
// version, or version 0; a full copy on the way is taken where that means fewer bytes. `held` may be
// null; `seed` is the checkpoint that is version 0, empty if there is none. Only manifests and
// indexes are read. kNotFound names the versions that the store lacks; kOutOfOrder where a delta
// does not build on what is held, or versions do not belong together.
base::Result<Plan> MakePlan(store::Source& source, std::uint64_t target, const HeldVersion* held,
                            const std::string& seed);

// Is what the replica holds, by everything that the store says, its version of that number?
base::Result<bool> IsHeld(store::Source& source, const HeldVersion& held,
                          const store::Described* child);

// "1–9, 12"
std::string RangesText(const std::vector<std::uint64_t>& numbers);

}  // namespace syncline::replica
