// Reads the frame of one tensor's delta and puts the tensor from its old to its new state, block by
// block.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/block_changes.h"
#include "delta/encoding.h"

namespace syncline::delta {

// One thread at a time. After an error the patch is of no further use; blocks that were already
// handed back are as they should be.
class TensorPatch {
 public:
  virtual ~TensorPatch() = default;

  // `block` holds the next block.size() bytes (at most kBlockBytes, a multiple of the unit) of the
  // tensor in its old state; they are replaced by the new ones and each unit that changed is added
  // to `changes`. kCorrupt where the frame is damaged or ends too early.
  virtual base::Status ApplyNext(base::MutableByteSpan block, BlockChanges& changes) = 0;

  // To be called after the last block: kCorrupt if the frame says more.
  virtual base::Status Finish() = 0;
};

// Opens a frame for a tensor of that size. `frame` must outlive the patch. Refuses at once, without
// allocating by unchecked sizes: what is no zstd frame, a frame whose size does not fit the tensor,
// overwrite positions outside of it.
base::Result<std::unique_ptr<TensorPatch>> OpenPatch(Encoding encoding, base::ByteSpan frame,
                                                     std::uint64_t tensor_bytes);

// Checks a frame without the tensor it belongs to. Returns the number of bytes that it changes.
base::Result<std::uint64_t> CheckFrame(Encoding encoding, base::ByteSpan frame);

}  // namespace syncline::delta
