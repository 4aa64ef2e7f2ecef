// What may be removed from a store, and when. Readers announce themselves by leases where they can
// write to the store; for all others there is a time of grace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "objects/object_store.h"

namespace syncline::store {

struct GcOptions {
  std::uint64_t keep = 0;             // newest versions to keep, at least 1
  std::uint64_t keep_full_every = 0;  // keep also full versions whose number it divides; 0: none
  double grace_seconds = 600;  // between the first gc that finds a version useless and its removal
  bool dry_run = false;        // reports what would be done and changes nothing
  base::FileSystem* files = nullptr;  // of a local directory; null: the real ones
  const base::CancelToken* cancel = nullptr;
};

// Ascending numbers; each version of the store is in one of the first four.
struct GcReport {
  std::vector<std::uint64_t> kept;
  std::vector<std::uint64_t> removed;
  std::vector<std::uint64_t> waiting;  // useless; they, or others that build on them, are in their
                                       // time of grace
  std::vector<std::uint64_t> leased;   // useless, but a reader holds them or others that build on
                                       // them
  std::vector<std::string> folds_removed;  // folders of folds, sorted
  std::uint64_t bytes_removed = 0;         // theirs too
};

// Removes versions that no kept one needs. Kept are the newest `keep`, the one that
// syncline.latest.json points to, those by keep_full_every that are full or hold a full copy, and
// whatever leads to each of them: a delta needs its base, down to a full version or full copy, or
// to version 0 where the store has none. A version that cannot be read, or whose base is missing,
// may need any older one, so all of these are kept; the error log names it.
//
// A fold (folds.h) stays as long as the version that it leads to: it is no reason to keep others,
// and needs none of them, as a reader may hold the version that it leads from. It goes just before
// its version does, or at once where there is no such version.
//
// A version that is found useless is noted with the time in .syncline/gc.json, and removed by the
// first gc after its time of grace; it leaves the notes if it is needed again. A version leaves a
// directory in one step (it is renamed away before it is deleted); elsewhere its manifest and index
// go first, so no reader takes the rest for a version, and the next gc ends what one that was
// killed began.
//
// May run beside a publisher and beside readers. One at a time on a directory: kLocked otherwise.
// kInvalidArgument for keep 0; kIncompatible where the store cannot be listed or written.
base::Result<GcReport> Collect(objects::ObjectStore& store, const GcOptions& options);

// A reader's word that it needs the versions [from, to]: a file in `.syncline/leases` of a
// directory, removed when destroyed. It counts until it is `kLeaseSeconds` old without renewal, or
// its process (same host and boot) is gone. One thread at a time.
inline constexpr double kLeaseSeconds = 600;
class Lease {
 public:
  virtual ~Lease() = default;
  // To be called now and then in long work; writes only when a third of the time is over.
  virtual void Renew() = 0;
};
// Null where the store cannot be written (read-only, HTTP, S3): a grace time must do. `files` must
// outlive the lease.
std::unique_ptr<Lease> TakeLease(objects::ObjectStore& store, std::uint64_t from, std::uint64_t to,
                                 base::FileSystem& files = base::FileSystem::Posix());

}  // namespace syncline::store
