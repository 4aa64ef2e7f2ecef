// A publisher that goes on where the last one stopped.
#pragma once

#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "store/publisher.h"

namespace syncline::replica {

// Where the last version is kept, which the next one is compared with.
enum class BaselineKind {
  kMemory,  // a copy in memory
  kDisk,    // a replica of the store, mapped: see ReplicaBaseline
  kNone,    // nowhere: every version is a full one
};

struct ResumeOptions {
  std::string base;  // checkpoint that is version 0; empty: version 0 is in the store, or will be
  BaselineKind baseline = BaselineKind::kMemory;
  std::string
      baseline_directory;    // of kDisk; empty: a folder of the publisher's own (in the store,
                             // if that is a directory)
  bool one_version = false;  // of kDisk: the publisher makes one version and ends, so the
                             // replica need not follow; the next one brings it there
  store::PublisherOptions publisher;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
};

// Opens a publisher with the newest version of the store as baseline; of an empty store, with
// `base`, for which nothing is written (the next version is 1); without both it has none (the next
// version is a full one).
//
// For a copy in memory the newest version is read from its own directory if it is a full one in a
// directory. Else it is pulled into the folder `resume` of the publisher's own, checked against the
// hashes of the chain, loaded and removed again (by several ranks: by each, when it publishes first,
// and of the tensors that it then publishes): there must be room for the whole model for that
// time. Errors of the pull say which version is missing; a store of deltas on a checkpoint that is
// not there needs `base`. kLocked while another publisher has the store open.
base::Result<store::Publisher> ResumePublisher(base::FileSystem& files, const std::string& store,
                                               const ResumeOptions& options);

}  // namespace syncline::replica
