// The memory of a tensor that another process shares by torch's strategy `file_system`.
//
// It is an object of POSIX shared memory: 64 bytes of header, which begin with a 32-bit count of
// those who hold it, then the data. Seen with torch 2.13, and in what it sends:
//   - The sender holds one count for its own tensor, and adds one for each time it pickles the
//     storage, for the receiver of that pickle. Within one pickle a storage comes once.
//   - A receiver maps the object, and when it is done takes one away. Who takes the last one
//     removes the object. So the memory lives on when the sender drops its tensor first, and
//     nothing is left when both are done.
//   - A payload is therefore taken once. If it is taken again, the count comes to zero too early
//     and the name is removed; what is mapped stays, but the next payload of that tensor is not
//     found. One that is never taken stays until the sender ends.
//   - When the sender's process ends, its torch_shm_manager removes all of its objects: a payload
//     that was not taken by then is not found. We do not speak to that manager. Where we take the
//     last count, it keeps the name in a list until it ends, which costs it some 60 bytes.
//
// Only names that torch gives are opened. Those who can send payloads can name, and by many
// payloads remove, any such object that this user may open: it is the trust between the processes
// of one user that torch itself works with. Where a sender makes an object smaller while it is in
// use, what is gone reads as zeros, and Intact() says so afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::payload {

// The data of one storage, there until it is destroyed.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual base::ByteSpan bytes() const = 0;
  // Was everything there that has been read so far? kCorrupt.
  virtual base::Status Intact() const = 0;
};

// "/torch_PID_RANDOM_N" with decimal numbers, and nothing else.
bool IsSharedMemoryName(std::string_view name);

// Maps `bytes` bytes of data. When destroyed, takes one away from the count. Holds no descriptor.
//   kInvalidArgument   not such a name, or the object is smaller than header and data
//   kNotFound          no such object
//   others             the operating system refused
base::Result<std::unique_ptr<Memory>> OpenSharedMemory(std::string_view name, std::uint64_t bytes);

}  // namespace syncline::payload
