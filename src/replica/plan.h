// Which versions of a store lead to a target.
#pragma once

#include <cstdint>
#include <set>
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
  std::vector<store::Described> deltas;  // or folds, after the start, in the order of their use
  std::uint64_t bytes = 0;               // to be read from the store

  // Which part of `start` is the checkpoint to begin with.
  store::Part start_part() const {
    return kind == Start::kFullCopy ? store::Part::kFullCopy : store::Part::kVersion;
  }
  std::uint64_t start_version() const { return kind == Start::kSeed ? 0 : start.number; }
};

// How a plan may use the folds of a store (store/folds.h).
struct FoldUse {
  bool use = true;
  std::set<std::string> without;  // folders of those that turned out to be bad
};

// Looks for the way to the target with the fewest bytes to be read: down its bases, and by folds,
// to the version that is held (of the same run), a full version, a full copy, or version 0, whose
// seed counts as much as it has bytes. `held` may be null; `seed` is the checkpoint that is version
// 0, empty if there is none. Only manifests and indexes are read; a fold counts if it leads to the
// version that is there, from the one that is held or there. Where a single delta leads from what
// is held to the target, nobody asks for folds. A fold that cannot be read is left alone, and never
// the reason of an error. kNotFound names the versions that the store lacks; kOutOfOrder where a
// delta does not build on what is held, or versions do not belong together.
base::Result<Plan> MakePlan(store::Source& source, std::uint64_t target, const HeldVersion* held,
                            const std::string& seed, const FoldUse& folds = {});

// Is what the replica holds, by everything that the store says, its version of that number?
base::Result<bool> IsHeld(store::Source& source, const HeldVersion& held,
                          const store::Described* child);

// "1–9, 12"
std::string RangesText(const std::vector<std::uint64_t>& numbers);

}  // namespace syncline::replica
