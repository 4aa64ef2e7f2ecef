// Writes tensors in memory as a checkpoint directory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/components.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::checkpoint {

struct WriteOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  // of data; a larger tensor gets a file of its own
  bool durable = true;                           // data is on the device when the call returns
  const tensor::Loader* loader = nullptr;        // where the tensors' bytes are not in memory
  Stems components;  // of a tree: its folders; empty: the directory is one folder
};

// Writes model.safetensors, or numbered files with an index where one would be larger than
// max_file_bytes or its header larger than readers open, into a directory that exists. Of a tree
// the same in each folder, with its stem: there go the tensors whose names begin with the folder
// and '/', which are left out of the names in the file; kInvalidArgument for a tensor of no folder.
// Tensors are written in parallel, big ones in several parts. On failure what was written stays;
// use a directory aside.
base::Status WriteCheckpoint(base::FileSystem& files, const std::string& directory,
                             std::span<const tensor::TensorView> tensors,
                             const WriteOptions& options, base::ThreadPool& pool,
                             base::Progress& progress, const base::CancelToken* cancel);

// Where each tensor went: tensor, file; of a tree both with the folder.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// The same for one of several writers that fill a directory together: files are named
// "<prefix>00000.safetensors" and so on, of a tree in each folder, and there is no index. Of no
// tensors there is no file.
base::Result<WeightMap> WriteShards(base::FileSystem& files, const std::string& directory,
                                    std::span<const tensor::TensorView> tensors,
                                    const std::string& prefix, const WriteOptions& options,
                                    base::ThreadPool& pool, base::Progress& progress,
                                    const base::CancelToken* cancel);

}  // namespace syncline::checkpoint
