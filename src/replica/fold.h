// Makes folds: deltas that lead from one version of a store over several others to a later one
// (store/folds.h), so that a reader that is behind reads less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "delta/encoding.h"
#include "store/source.h"

namespace syncline::replica {

struct FoldOptions {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  // Checkpoint or replica that is version `from`; nothing may write to it meanwhile. Empty: it is
  // made from the store.
  std::string base;
  // Where checkpoints are made meanwhile; empty: beside a publisher's staging (in the store, or
  // below $TMPDIR).
  std::string work_directory;
  delta::EncodingChoice encoding;
  std::string signing_key;  // PEM file of the private key; empty: not signed
  bool durable = true;      // of a directory: what stands is on the device
  std::size_t threads = 0;  // 0: one for each processor
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
  store::SourceOptions source;  // its `cancel` is set by the call
};

struct FoldReport {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::string identity;  // SHA-256 of its manifest
  std::string url;       // path or URL of its folder
  std::uint64_t tensors = 0;
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes = 0;  // of all its files
  // Of what else leads from `from` to `to` in the store; nothing: nothing does.
  std::optional<std::uint64_t> bytes_without;
  double seconds = 0;
};

// Makes the fold from version `from` to `to` of the store at `store` (a directory or s3://…). Both
// are made as whole checkpoints first (where they are not there as such), so there must be room for
// two models, and for one with `base`. What they are is proven by the hashes that the store knows;
// that the fold leads from one to the other, by carrying it out, before anything is put into the
// store. After an error the store is as it was, unless it says that the fold stands.
//
// kNotFound: a version is not in the store, or the store does not lead to `from`: `base` is needed.
// kAlreadyExists: there is such a fold. kChecksumMismatch, kOutOfOrder: `base` is not that version.
// kInvalidArgument: the versions are no two that can be folded. kIncompatible: they have no
// manifest, or the store cannot be listed and written. kLocked: another fold is at work there.
//
// May run beside a publisher, readers and retention: it has a lock of its own and holds the
// versions by a lease.
base::Result<FoldReport> Fold(base::FileSystem& files, const std::string& store,
                              const FoldOptions& options);

}  // namespace syncline::replica
