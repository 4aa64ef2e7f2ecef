// Writes a full version, or the full copy inside a delta: a checkpoint directory with the files that
// belong to it, or a tree of components.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/components.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::store {

// The folders that these tensors make a tree of, each with the stem of its weight files; nothing
// where they go into one folder. They are a tree if every name begins with a component's folder,
// unless `companions_from` (may be empty) is a checkpoint of one folder; stems are those that it
// has, or the usual ones. kInvalidArgument if it is a tree and a tensor has no place there.
base::Result<checkpoint::Stems> ChooseStems(base::FileSystem& files,
                                            std::span<const std::string_view> tensors,
                                            const std::string& companions_from);

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

// The files of `from` that belong to weights (see IsCompanionFile), of a tree those of sub-folders
// too; never weights or an index. Their names go to `copied`.
base::Status CopyCompanions(base::FileSystem& files, const std::string& from, const std::string& to,
                            bool tree, bool durable, std::vector<std::string>& copied);

}  // namespace syncline::store
