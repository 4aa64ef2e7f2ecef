// Takes a replica from one version to the next by a delta, in two steps of which only the second
// changes anything.
#pragma once

#include <cstdint>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/state.h"
#include "store/version.h"

namespace syncline::replica {

struct ApplyCounts {
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes_read = 0;  // of the version's files
};

// Applies `version`, which builds on the version that `head` describes, to the replica whose files
// `checkpoint` describes; `head` becomes the new one. Nothing has moved after an error, unless it
// says that the replica must be seeded again (kIo, when putting the old bytes back failed too; then
// the marker is gone). Errors name version, file and tensor; kChecksumMismatch lists the tensors
// that would not be as published.
//
// The caller holds the lock.
base::Result<ApplyCounts> ApplyVersion(base::FileSystem& files, const ReplicaState& state,
                                       const checkpoint::Checkpoint& checkpoint,
                                       const store::Version& version, Head& head,
                                       base::ThreadPool& pool, base::Progress& progress,
                                       const base::CancelToken* cancel);

}  // namespace syncline::replica
