// The first half of an apply: reads deltas and the replica, finds out what the replica would
// become, and writes the journal of it. Nothing of the replica changes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/changes.h"
#include "replica/journal.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/arrival.h"
#include "store/version.h"

namespace syncline::replica {

struct Prepared {
  std::vector<ChangedTensor> changed;  // one for each tensor of the deltas
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes_read = 0;  // of the versions' files
  std::uint64_t journal_bytes = 0;
  // Tensors that would not be as published, and how ("big (its xxh3-128 is …, expected …)"). If
  // there are any, no journal was committed.
  std::vector<std::string> wrong;
  // Names of those whose bytes are not what the replica believes to hold: the fault is its own.
  std::vector<std::string> damaged;
};

// `chain`: deltas that follow one another; they are folded, so that each block of the replica is
// read and recorded once, however many of them change it. Only what the last delta of a tensor
// makes of it is checked, by `verify` (kIncompatible if a delta lacks the digests for it). Their
// files are read through `arrival`, as they come; the journal is not committed before all that
// arrives is proven, so an error may be that of Arrival::Wait, or come of bytes that are not proven.
// `held` describes the replica as it is; `head.tensors` is filled in, with the hashes before taken
// from it. The journal is written to `path` and synced. Beside a few MiB for each thread the frames
// of what it works on are held by each; frames above 32 MiB are copied to a file of ours and mapped.
// Errors name version, file and tensor.
base::Result<Prepared> Prepare(base::FileSystem& files, const checkpoint::Checkpoint& checkpoint,
                               const store::Arrival& arrival, std::span<const store::Version> chain,
                               const Head& held, VerifyBy verify, JournalHead head,
                               const std::string& path, base::ThreadPool& pool,
                               base::Progress& progress, const base::CancelToken* cancel);

}  // namespace syncline::replica
