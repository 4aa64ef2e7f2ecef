// The files in .syncline/leases of a store directory, as retention reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace syncline::store {

// The range of versions that a reader holds, both ends in it.
struct HeldRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
};

// What live readers hold of the store directory at `now_ns` (since the epoch). Files of leases that
// are too old, or whose process is gone, are removed if `drop`. A file that cannot be understood
// holds everything until it is too old.
base::Result<std::vector<HeldRange>> ReadLeases(base::FileSystem& files, const std::string& store,
                                                std::int64_t now_ns, bool drop);

// Nanoseconds since the epoch.
std::int64_t NowNs();

}  // namespace syncline::store
