// Writes the files of a delta version in the compact encoding (docs/format.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/delta_writer.h"
#include "tensor/digest.h"

namespace syncline::store {

// As WriteDelta, for Encoding::kCompact: files of frames, each with its table, but no index. Tensors
// are scanned in parallel, large ones by frames. Beside the inputs the changes of a group of frames are
// held, at most about 200 MiB.
base::Result<DeltaCounts> WriteCompact(base::FileSystem& files, const std::string& directory,
                                       std::span<const tensor::TensorView> old_tensors,
                                       std::span<const tensor::TensorView> new_tensors,
                                       const DeltaFiles& how,
                                       std::vector<delta::ChangedLines>& lines,
                                       base::ThreadPool& pool, base::Progress& progress,
                                       const base::CancelToken* cancel);

}  // namespace syncline::store
