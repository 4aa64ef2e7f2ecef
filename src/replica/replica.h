// A host's own copy of the served checkpoint: an ordinary checkpoint directory that other programs
// can load, kept at one version of a store.
//
// All calls may be made by several processes at once: whoever changes the replica, or finds out what
// it holds, waits for its lock. Whatever ends a call, a kill or a power cut too, the next one finds
// the old or the new version, or makes one of them whole again; the ways are in recover.cc, apply.cc,
// seed.cc and undo.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "store/source.h"

namespace syncline::replica {

// How a pull finds out that a delta makes of a tensor what was published. What was there before,
// and was wrong in a place that the delta leaves alone, is found by kHash and kFull.
enum class VerifyBy : std::uint8_t {
  kHash,  // the content hash of the whole new tensor
  // The additive digest (tensor/digest.h) of the old tensor, and what the changes add to it: it
  // says that what changed is what was published to change, and costs no look at anything else.
  kChained,
  kFull,  // the additive digest of the whole new tensor
};
// "hash", "chained" or "full".
std::optional<VerifyBy> FindVerifyBy(std::string_view name);
std::string_view Name(VerifyBy by);

struct PullOptions {
  std::optional<std::uint64_t> version;  // nothing: the newest one
  // Checkpoint that is version 0; empty: the one that an earlier pull was given, or version 0 must
  // be in the store.
  std::string seed;
  // But for kHash all deltas on the way must carry digests; else it is kIncompatible, before
  // anything is fetched where their encoding tells. Full versions are compared with their hashes.
  VerifyBy verify = VerifyBy::kHash;
  // That work, and as many more that fetch; 0: one for each processor.
  std::size_t threads = 0;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
  store::SourceOptions source;  // its `cancel` is set by the call
  std::string test_boot_id;     // for tests: what to take for the running kernel's boot id
};

struct PullReport {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> from_version;  // what the replica held; nothing: no whole version
  bool recovered = false;  // something that was interrupted had to be completed first
  bool seeded = false;     // a whole checkpoint was copied
  std::optional<std::uint64_t> seeded_from;  // version of the store; nothing: PullOptions::seed
  std::vector<std::uint64_t> applied;        // deltas, in order
  std::vector<std::uint64_t> undone;         // deltas that were taken back, in order
  std::uint64_t tensors_repaired = 0;        // that were damaged
  std::uint64_t tensors_changed = 0;         // summed over `applied`
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes_read = 0;  // from store and seed
  double seconds = 0;
};

// Brings the replica in directory `into` (made if missing) to a version of the store at `store` (a
// path or URL, see objects/object_store.h).
//
// What happens: nothing, if it is there already, of the same run. Else the deltas that lead from the
// version it holds to the target, in order; or, where that chain is broken, by a full version or
// another run, or where it is dearer, or nothing whole is held, the nearest full version, full copy
// or the seed, and the deltas after it. Deltas are decoded while they are fetched and checked, but
// nothing changes before all versions needed are there and right; kNotFound names those that are
// missing. Target 0 sets the replica back to the seed or version 0
// of the store; any other older target is reached if the last pull's deltas can be taken back that
// far, else it is kOutOfOrder. Tensors that turn out to be damaged are healed from the store.
//
// Afterwards, and after an error, the replica is exactly some version, the one its marker names: of
// a chain that fails in the middle the last version that was whole. A directory with files of its
// own that was never a replica is kAlreadyExists. Files that are links, or have other names
// elsewhere, are replaced by copies before they are written to.
base::Result<PullReport> Pull(base::FileSystem& files, const std::string& store,
                              const std::string& into, const PullOptions& options);

struct UndoOptions {
  std::size_t threads = 0;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
  std::string test_boot_id;
};

struct UndoReport {
  std::uint64_t version = 0;       // that is held now
  std::uint64_t from_version = 0;  // that was held
  double seconds = 0;
};

// Returns to the version that was held before the last pull that changed something. kNotFound if
// there is none to return to: the first pull, or one that was undone already.
base::Result<UndoReport> Undo(base::FileSystem& files, const std::string& into,
                              const UndoOptions& options);

struct VerifyReport {
  enum class Kind { kStore, kReplica, kCheckpoint };
  Kind kind = Kind::kCheckpoint;
  std::vector<std::uint64_t> versions;  // of a store: those checked; of a replica: the one it holds
  std::uint64_t folds = 0;              // of a store: those checked
  std::uint64_t tensors = 0;
  std::uint64_t tensors_hashed = 0;    // compared with a known hash
  std::uint64_t tensors_repaired = 0;  // with VerifyOptions::repair
  std::vector<std::string> edited;     // files beside the weights that are not as they came
  std::uint64_t bytes = 0;             // read
  double seconds = 0;
};

struct VerifyOptions {
  std::optional<std::uint64_t>
      version;  // of a store: only this one; of a replica: it must hold this one
  // Of a replica: heal what is damaged, from `store` (empty: the one it was pulled from) and `seed`
  // (empty: the one an earlier pull was given).
  bool repair = false;
  std::string store;
  std::string seed;
  std::size_t threads = 0;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
  store::SourceOptions source;
  std::string test_boot_id;
};

// Checks whatever stands at `path`. A store (a path or URL): every version's files follow their
// formats, have the hashes of the manifest, frames decompress, and each delta's base is there (or is
// version 0, or a full copy or fold makes up for it); of folds likewise. A replica: every tensor
// and file has the hash that the pull recorded. Any other checkpoint: its files follow the format.
// With `repair` a pull that was interrupted is completed first.
base::Result<VerifyReport> Verify(base::FileSystem& files, const std::string& path,
                                  const VerifyOptions& options);

}  // namespace syncline::replica
