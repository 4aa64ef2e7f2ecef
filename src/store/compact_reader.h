// Reads deltas in the compact encoding (docs/format.md).
#pragma once

#include <memory>

#include "store/delta_reader.h"

namespace syncline::store {

// A reader of a version whose encoding is compact. Its runs are cells.
base::Result<std::unique_ptr<DeltaReader>> OpenCompactReader(base::FileSystem& files,
                                                             const Version& version);

}  // namespace syncline::store
