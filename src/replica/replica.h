// A host's own copy of the served checkpoint: an ordinary checkpoint directory that other programs
// can load, kept at one version of a store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"

namespace syncline::replica {

struct PullOptions {
  std::optional<std::uint64_t> version;  // nothing: the newest one
  std::string seed;         // checkpoint that is version 0; empty: version 0 must be in the store
  std::size_t threads = 0;  // 0: one for each processor
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
};

struct PullReport {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> from_version;  // what the replica held; nothing: no whole version
  bool seeded = false;                        // a whole checkpoint was copied
  std::optional<std::uint64_t>
      seeded_from;                     // full version of the store; nothing: PullOptions::seed
  std::vector<std::uint64_t> applied;  // deltas, in order
  std::uint64_t tensors_changed = 0;   // summed over `applied`
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes_read = 0;  // from store and seed
  double seconds = 0;
};

// Brings the replica in directory `into` (made if missing) to a version of the store.
//
// What happens: nothing, if it is there already. Else the deltas that lead from the version it
// holds to the target, in order; or, where that chain is broken by a full version, or nothing whole
// is held, the newest full version (or the seed) and the deltas after it. All versions needed are
// read and checked first: kNotFound names those that are missing. Target 0 sets a newer replica
// back to the seed or the full version 0; any other older target is kOutOfOrder. Afterwards, and
// after an error, the replica is exactly some version, the one its marker names: of a chain that
// fails in the middle the last version that was whole. A directory with files of its own that was
// never a replica is kAlreadyExists.
//
// Takes the replica's lock and waits for it. After a restart of the machine the bytes are hashed
// before they are trusted.
base::Result<PullReport> Pull(base::FileSystem& files, const std::string& store,
                              const std::string& into, const PullOptions& options);

struct VerifyReport {
  enum class Kind { kStore, kReplica, kCheckpoint };
  Kind kind = Kind::kCheckpoint;
  std::vector<std::uint64_t> versions;  // of a store: those checked; of a replica: the one it holds
  std::uint64_t tensors = 0;
  std::uint64_t tensors_hashed = 0;  // compared with a known hash
  std::uint64_t bytes = 0;           // read
  double seconds = 0;
};

struct VerifyOptions {
  std::optional<std::uint64_t>
      version;  // of a store: only this one; of a replica: it must hold this one
  std::size_t threads = 0;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
};

// Checks whatever stands at `path`. A store: every version's files follow their formats, frames
// decompress, and each delta's base is there (or is version 0). A replica: every tensor has the
// hash that the pull recorded. Any other checkpoint: its files follow the format.
base::Result<VerifyReport> Verify(base::FileSystem& files, const std::string& path,
                                  const VerifyOptions& options);

}  // namespace syncline::replica
