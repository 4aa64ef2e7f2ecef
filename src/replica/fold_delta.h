// The files of a fold: the delta between its two ends. Inside of fold.cc.
#pragma once

#include <cstdint>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "delta/encoding.h"
#include "replica/fold_ends.h"
#include "store/folds.h"
#include "store/manifest.h"

namespace syncline::replica {

struct FoldDelta {
  store::FoldRange range;
  std::string run;
  std::string base;  // identities, as of store::ManifestFold
  std::string target;
  delta::EncodingChoice encoding;
  bool durable = true;
};

struct WrittenFold {
  store::Manifest manifest;
  std::uint64_t tensors_changed = 0;
};

// Writes index and frames of what differs between both ends into `staged`, a directory that exists
// and has the fold's name, and makes the manifest that goes with them. What was read of the ends
// has the hashes that they are known by: kChecksumMismatch otherwise. kInvalidArgument where they
// are not of the same tensors.
base::Result<WrittenFold> WriteFoldDelta(base::FileSystem& files, const FoldDelta& fold,
                                         const FoldEnd& from, const FoldEnd& to,
                                         const std::string& staged, base::ThreadPool& pool,
                                         base::Progress& progress, const base::CancelToken* cancel);

// Reads those files as a reader does, and makes of `from` what they say, into a journal at `path`
// that nobody needs: kChecksumMismatch if a tensor does not get its hash.
base::Status CarryOutFold(base::FileSystem& files, const FoldDelta& fold, const FoldEnd& from,
                          const std::string& staged, const std::string& path,
                          base::ThreadPool& pool, base::Progress& progress,
                          const base::CancelToken* cancel);

}  // namespace syncline::replica
