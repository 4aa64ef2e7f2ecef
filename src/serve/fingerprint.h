// Tells whether the files of a directory are still those that were seen before.
#pragma once

#include <string>

#include "base/error.h"
#include "base/file.h"

namespace syncline::serve {

// Name, file number, size, and times of change (contents and metadata, in nanoseconds) of every
// file below `directory`, links followed. Differs after any write, also one that sets the size and
// the time of modification back: the time of the metadata cannot be set.
base::Result<std::string> Fingerprint(base::FileSystem& files, const std::string& directory);

}  // namespace syncline::serve
