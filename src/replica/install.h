// Writes one side of a journal into the files of a replica.
#pragma once

#include <set>
#include <string>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "delta/block_patch.h"
#include "replica/journal.h"

namespace syncline::replica {

enum class Check {
  kNone,       // the bytes around what is written may be anything, as after a power cut
  kNewBlocks,  // of kNew: the replica is as it was when the journal was made, so what is written must
               // be the block that was hashed then; kChecksumMismatch before a wrong one is written
};

// Afterwards every place that the journal knows has its old or its new value, whatever it had
// before; so it may be repeated after a failure. In parallel. Nothing is synced.
base::Status Install(base::FileSystem& files, const std::string& directory, const Journal& journal,
                     delta::Side side, Check check, base::ThreadPool& pool,
                     base::Progress& progress);

// The data of these files (relative to the directory) is on the device when it returns.
base::Status SyncFiles(base::FileSystem& files, const std::string& directory,
                       const std::set<std::string>& names, base::ThreadPool& pool);

}  // namespace syncline::replica
