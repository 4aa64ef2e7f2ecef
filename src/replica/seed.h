// Fills a replica with a whole checkpoint: the first version that it holds, or one that replaces
// all before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "replica/state.h"
#include "store/manifest.h"

namespace syncline::replica {

struct SeedOptions {
  HeldVersion to;        // the token is drawn here
  std::string source;    // see Head
  std::string seed;      // see Head
  std::string stamp;     // see Head
  bool consume = false;  // the files of the checkpoint are ours: they are moved where that can be
};

// Copies a checkpoint (its weight files, indexes and companions, sub-folders too) into the replica,
// in two steps: Bring copies it aside and syncs it; until then the replica stays as it is, after a
// failure too. Swap puts it in the place of what is there. Links in the checkpoint are followed,
// never shared: the replica owns its bytes. kNoSpace before anything is copied if there is less room
// than the checkpoint needs.
//
// The caller holds the lock.
class Seeder {
 public:
  explicit Seeder(const ReplicaState& state) : state_(state) {}

  // `expected`: the manifest of the version, if it has one, and which part of it the checkpoint is:
  // what was copied must have its hashes: kChecksumMismatch or kCorrupt otherwise. Returns the bytes
  // read.
  base::Result<std::uint64_t> Bring(const std::string& checkpoint, const SeedOptions& options,
                                    const store::Manifest* expected, store::Part part,
                                    base::ThreadPool& pool, base::Progress& progress,
                                    const base::CancelToken* cancel);

  // Puts what Bring left into place and returns its head. What was there is kept in `previous` if
  // it was whole. May be called again after it was interrupted.
  base::Result<Head> Swap();

  // Is there something to be swapped in, complete?
  base::Result<bool> IsReady() const;

  // Makes what Swap kept the next thing to be swapped in: the way back, which keeps nothing itself.
  // False: nothing was kept.
  base::Result<bool> PrepareReturn();
  base::Result<std::optional<Head>> Previous() const;

 private:
  const ReplicaState& state_;
};

}  // namespace syncline::replica
