// Takes a replica from one version to another by a chain of deltas.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/arrival.h"
#include "store/version.h"

namespace syncline::replica {

struct ApplyCounts {
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes_read = 0;  // of the versions' files
  std::uint64_t journal_bytes = 0;
  // If there are any, nothing was applied: these tensors of the replica are not what its head says.
  std::vector<std::string> damaged;
};

// Applies `chain`, deltas that follow one another and of which the first builds on the version that
// `head` describes, to the replica whose files `checkpoint` describes: as one transaction, with one
// journal. The deltas are read while they arrive: nothing of the replica changes before
// Arrival::Wait has returned well, but an error, and `damaged`, may come of bytes that turn out to
// be wrong. `head` becomes the new one, which holds `to` (its version and token are filled in
// here). `before_writing` is called when all is known to be right and the journal's content is on
// the device, before its name is; its error ends the apply. After an error the replica is as it
// was, unless the error says that putting it back failed; then there is no marker, and the next
// pull carries the journal out. Errors name version, file and tensor; kChecksumMismatch lists the
// tensors that would not be as published.
//
// The caller holds the lock.
base::Result<ApplyCounts> ApplyChain(
    const ReplicaState& state, const checkpoint::Checkpoint& checkpoint,
    const store::Arrival& arrival, std::span<const store::Version> chain, HeldVersion to,
    Head& head, VerifyBy verify, const std::function<base::Status()>& before_writing,
    base::ThreadPool& pool, base::Progress& progress, const base::CancelToken* cancel);

}  // namespace syncline::replica
