// Reads what a delta does to tensors, block by block.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/block_patch.h"
#include "delta/encoding.h"
#include "tensor/dtype.h"

namespace syncline::delta {

// Of one tensor, or of several that can only be read one after the other. One thread at a time.
// After an error the patch is of no further use.
class TensorPatch {
 public:
  virtual ~TensorPatch() = default;

  // What becomes of the next block of the tensor: kBlockBytes, or what it has left, as they are
  // before. `block` is cleared first; it comes from MakeBlock(). kCorrupt where the frame is damaged,
  // ends too early, or cannot belong to a tensor with these bytes.
  virtual base::Status Next(base::ByteSpan old_block, BlockPatch& block) = 0;

  // To be called after the last block of each tensor: kCorrupt if the frame says more of it.
  virtual base::Status Finish() = 0;

  // A patch for the blocks of this frame.
  virtual BlockPatch MakeBlock() const = 0;
};

// Opens a frame for a tensor of that size. `frame` must outlive the patch. Refuses at once, without
// allocating by unchecked sizes: what is no zstd frame, a frame whose size does not fit the tensor,
// overwrite positions outside of it.
base::Result<std::unique_ptr<TensorPatch>> OpenPatch(Encoding encoding, base::ByteSpan frame,
                                                     std::uint64_t tensor_bytes,
                                                     tensor::Dtype dtype);

// Checks a frame without the tensor it belongs to. Returns the number of bytes that it changes.
base::Result<std::uint64_t> CheckFrame(Encoding encoding, base::ByteSpan frame);

}  // namespace syncline::delta
