// The additive digests (tensor/digest.h) of the tensors of a checkpoint on disk.
#pragma once

#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "tensor/digest.h"

namespace syncline::checkpoint {

// The digest of each of checkpoint.tensors(), in their order. Every byte is read once, with read
// calls, in parallel within tensors too; each thread of the pool holds one block of 256 KiB.
// `cancel` may be null. Errors of reading name the tensor; a file that ends early is kCorrupt.
base::Result<std::vector<tensor::Digest>> DigestCheckpoint(base::FileSystem& files,
                                                           const Checkpoint& checkpoint,
                                                           base::ThreadPool& pool,
                                                           const base::CancelToken* cancel);

}  // namespace syncline::checkpoint
