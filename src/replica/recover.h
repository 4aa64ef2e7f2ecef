// Finds out what a replica holds, and completes what was interrupted.
#pragma once

#include <optional>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/hash_tensors.h"
#include "replica/journals.h"
#include "replica/state.h"

namespace syncline::replica {

struct Held {
  std::optional<Head> head;  // nothing: no version is held, not even a damaged one
  // What of it is not right. If weights() is true no marker stands, and the files have to be
  // repaired; otherwise the marker stands.
  Damage damage;
  bool recovered = false;  // something had been interrupted, or the machine had been restarted
  // Another program wrote the marker; the head was made from what is there and is not written yet.
  bool adopted = false;
};

// The caller holds the lock exclusively. An error means that nothing could be found out now (kIo, a
// cancelled wait); it may be tried again.
base::Result<Held> Recover(const ReplicaState& state, base::ThreadPool& pool,
                           base::Progress& progress, const base::CancelToken* cancel);

// Makes an adopted replica ours: writes its head and a marker with its token. To be called before it
// is changed, and once it is known to be what is wanted.
base::Status KeepAdopted(const ReplicaState& state, const Head& head);

// Gives the replica bytes of its own where a file of it is a link, or has a second name elsewhere:
// writing to it would change what somebody else sees.
base::Status Unshare(const ReplicaState& state, const checkpoint::Checkpoint& checkpoint);

}  // namespace syncline::replica
