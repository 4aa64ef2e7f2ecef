// What a producer of checkpoint-engine says over its socket, one pickle a message, read as data:
//
//   (function, arguments)           the buffer: what torch's reduce_tensor gives of a uint8 tensor
//   [{name, shape, dtype, offset}]  tensors that lie in the buffer now
//   None                            first: the buffer is needed no longer; second: the end
//   an exception                    the producer gives up
// The buffer is CPU memory that torch shares by the strategy `file_system` (shared_memory.h).
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "base/bytes.h"
#include "base/error.h"
#include "payload/payload.h"
#include "payload/shared_memory.h"
#include "payload/torch_tensor.h"

namespace syncline::payload {

struct SharedBuffer {
  std::unique_ptr<Memory> memory;
  base::ByteSpan bytes;  // the tensor's, in the memory
};
struct Nothing {};
struct Abort {
  std::string text;  // "RuntimeError: some workers failed"
};
using CheckpointMessage = std::variant<SharedBuffer, std::unique_ptr<Batch>, Nothing, Abort>;

// `buffer`: where tensors lie; they must be inside, at any alignment. The batch points into it, not
// into `message`, and its Intact() knows nothing of the buffer's memory: ask that.
//   kInvalidArgument  no such message; what, and where. So is a buffer on a device, or one that was
//                     pickled with its content
//   others            as Decode and OpenSharedMemory
base::Result<CheckpointMessage> ReadCheckpointMessage(base::ByteSpan message, base::ByteSpan buffer,
                                                      const OpenMemory& open = OpenSharedMemory);

}  // namespace syncline::payload
