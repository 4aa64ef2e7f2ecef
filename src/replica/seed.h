// Fills a replica with a whole checkpoint: the first version that it holds, or a full version that
// replaces all before.
#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/state.h"

namespace syncline::replica {

// Copies the checkpoint `source` (its weight files and companions) aside, then swaps it in: the
// marker is withdrawn, files take their names, files of the old content that the new one lacks are
// removed, head and marker are published as `version`. Until the swap the replica stays as it is,
// after a failure too. Links in `source` are followed, never shared: the replica owns its bytes.
// Returns the bytes read.
//
// The caller holds the lock.
base::Result<std::uint64_t> Seed(base::FileSystem& files, const ReplicaState& state,
                                 const std::string& source, std::uint64_t version,
                                 base::ThreadPool& pool, base::Progress& progress,
                                 const base::CancelToken* cancel);

}  // namespace syncline::replica
