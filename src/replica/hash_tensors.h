// Hashes the tensors of a checkpoint on disk.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/state.h"

namespace syncline::replica {

// Reads every tensor for which `kind_of` (null: xxh3-128 for all) names a kind, in parallel,
// largest first, with read calls. `copy` (may be null) is handed each piece as it is read: tensor,
// offset in its file, bytes; it is called from several threads.
using CopyPiece = std::function<base::Status(const checkpoint::CheckpointTensor&,
                                             std::uint64_t offset, base::ByteSpan bytes)>;
base::Result<std::vector<TensorHash>> HashTensors(
    base::FileSystem& files, const checkpoint::Checkpoint& checkpoint,
    const std::function<tensor::HashKind(const std::string& name)>& kind_of, const CopyPiece& copy,
    base::ThreadPool& pool, base::Progress& progress, const base::CancelToken* cancel);

// Names of the tensors whose bytes do not have the hash of the head, in order. Tensors that the
// head does not know count as wrong.
base::Result<std::vector<std::string>> FindWrongTensors(base::FileSystem& files,
                                                        const checkpoint::Checkpoint& checkpoint,
                                                        const Head& head, base::ThreadPool& pool,
                                                        base::Progress& progress,
                                                        const base::CancelToken* cancel);

}  // namespace syncline::replica
