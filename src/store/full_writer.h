// Writes a full version, or the full copy inside a delta: a checkpoint directory with the files that
// belong to it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::store {

// Into a directory that exists. `companions_from`: directory whose other files (configuration,
// tokenizer …) are copied too; empty: none. `loader`: where bytes are not in memory. Returns the
// names of all files written. On failure what was written stays.
base::Result<std::vector<std::string>> WriteFull(base::FileSystem& files,
                                                 const std::string& directory,
                                                 std::span<const tensor::TensorView> tensors,
                                                 const std::string& companions_from, bool durable,
                                                 const tensor::Loader* loader,
                                                 base::ThreadPool& pool, base::Progress& progress,
                                                 const base::CancelToken* cancel);

// The files of `from` that belong to weights (see IsCompanionFile); their names go to `copied`.
base::Status CopyCompanions(base::FileSystem& files, const std::string& from, const std::string& to,
                            bool durable, std::vector<std::string>& copied);

}  // namespace syncline::store
