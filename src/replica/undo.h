// The way back by journals.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/journals.h"
#include "replica/state.h"

namespace syncline::replica {

// Takes back these applies, the last one first; `line` leads to `head` (Journals::LeadingTo, or its
// end). Each is a transaction of its own: after an error the replica is at the version that `head`
// then names, or an interrupted step is completed by the next recovery. The journals are removed.
// kChecksumMismatch if the old bytes would not come back; then that step was carried out again.
//
// The caller holds the lock.
base::Status TakeBack(const ReplicaState& state, const std::vector<const StoredJournal*>& line,
                      Head& head, base::ThreadPool& pool, base::Progress& progress);

}  // namespace syncline::replica
