// Heals a replica from its store: only what is damaged is read and written.
#pragma once

#include <cstdint>
#include <string>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/hash_tensors.h"
#include "replica/state.h"
#include "store/source.h"

namespace syncline::replica {

struct RepairReport {
  std::uint64_t tensors = 0;     // written anew
  std::uint64_t files = 0;       // whose headers, or which whole, were written anew
  std::uint64_t bytes_read = 0;  // from the store and the seed
};

// Brings what `damage` names back to the version that `head` describes: tensors by reading them from
// the newest full version (full copy, seed) that leads there and applying the deltas after it to
// them alone; headers and other files from a checkpoint that has the same ones. No marker stands
// meanwhile; afterwards every tensor that was damaged has its hash, all is synced, and the marker
// stands. An error leaves no marker, and what was not healed damaged: kNotFound, kOutOfOrder where
// the store does not lead to that version (any more), kCorrupt where a file cannot be made from it.
//
// The caller holds the lock.
base::Result<RepairReport> Repair(const ReplicaState& state, const Head& head, Damage damage,
                                  store::Source& source, const std::string& seed,
                                  base::ThreadPool& pool, base::Progress& progress,
                                  const base::CancelToken* cancel);

}  // namespace syncline::replica
