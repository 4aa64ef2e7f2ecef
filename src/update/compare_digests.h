// Live weights against a version of a store, tensor by tensor, by their digests.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "layout/plan.h"
#include "update/weights.h"

namespace syncline::update {

// Where the store's chain begins at version 0 outside of it, that is the checkpoint at
// `launch_path`, which is read. Errors as of reading a store.
base::Result<DigestComparison> CompareDigests(base::FileSystem& files, const layout::Plan& plan,
                                              std::span<const DigestReport::Tensor> live,
                                              const std::string& source, std::uint64_t version,
                                              const std::string& launch_path,
                                              const base::CancelToken& cancel);

}  // namespace syncline::update
