// What the ranks that publish together do with weight files in the staging directory.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/writer.h"
#include "tensor/view.h"

namespace syncline::store {

// Removes what an earlier attempt of the same rank left in one folder, which may be missing.
base::Status RemoveOwnFiles(base::FileSystem& files, const std::string& directory,
                            const std::string& prefix);

// One rank's part of a full version or copy, of a tree in all its folders, which are made. What it
// left there before goes. Durable with options.durable, names too.
base::Result<checkpoint::WeightMap> WriteOwnWeights(
    base::FileSystem& files, const std::string& directory,
    std::span<const tensor::TensorView> owned, const std::string& prefix,
    const checkpoint::WriteOptions& options, base::ThreadPool& pool, base::Progress& progress,
    const base::CancelToken* cancel);

// Sizes of all tensors in these files, by their headers.
base::Result<std::uint64_t> TensorBytes(base::FileSystem& files, const std::string& directory,
                                        const std::set<std::string>& names);

// Removes everything below `directory` that is not listed; names are relative to it.
base::Status RemoveUnlisted(base::FileSystem& files, const std::string& directory,
                            const std::set<std::string>& listed);

}  // namespace syncline::store
