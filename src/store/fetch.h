// Fetches files of an object store to a local directory so that an interrupted fetch can go on.
#pragma once

#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "objects/object_store.h"

namespace syncline::store {

struct FetchFile {
  std::string key;   // in the store
  std::string name;  // below the directory
  std::uint64_t bytes = 0;
  std::string sha256;  // empty: not known
};

// Brings all of them, in pieces of 8 MiB in parallel. A file in the making is NAME.part at its full
// size with NAME.done beside it, which has one byte for each piece that is there, and the tag and
// size of the object. A file that has its SHA-256 (or of which none is known, its size) gets its
// name; one that has not is removed and named in kChecksumMismatch. Space is asked for first
// (kNoSpace). kCorrupt if the object has another size.
base::Status Fetch(objects::ObjectStore& store, const std::vector<FetchFile>& wanted,
                   base::FileSystem& files, const std::string& directory, base::ThreadPool& pool,
                   base::Progress& progress, const base::CancelToken* cancel);

}  // namespace syncline::store
