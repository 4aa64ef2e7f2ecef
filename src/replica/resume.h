// A publisher that goes on where the last one stopped, for trainers that hand over tensors in
// memory and keep no copy of what they published.
#pragma once

#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "store/publisher.h"

namespace syncline::replica {

struct ResumeOptions {
  std::string base;  // checkpoint that is version 0; empty: version 0 is in the store, or will be
  store::PublisherOptions publisher;
  base::Progress* progress = nullptr;
  const base::CancelToken* cancel = nullptr;
};

// Opens a publisher whose baseline is a copy in memory: of the newest version of the store; of an
// empty store, of `base`, for which nothing is written (the next version is 1); without both it is
// empty (the next version is a full one).
//
// The newest version is read from its own directory if it is a full one. Else it is pulled into the
// store's folder `.syncline/resume`, checked against the hashes of the chain, loaded and removed
// again: the store needs room for the whole model for that time. Errors of the pull say which
// version is missing; a store of deltas on a checkpoint that is not there needs `base`. kLocked
// while another publisher has the store open.
base::Result<store::Publisher> ResumePublisher(base::FileSystem& files, const std::string& store,
                                               const ResumeOptions& options);

}  // namespace syncline::replica
