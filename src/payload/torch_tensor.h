// Tensors inside a pickle: the calls that would rebuild them, read as views of storages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "payload/pickle.h"
#include "payload/shared_memory.h"
#include "payload/strided.h"

namespace syncline::payload {

// OpenSharedMemory, or a double of it.
using OpenMemory =
    std::function<base::Result<std::unique_ptr<Memory>>(std::string_view name, std::uint64_t)>;

// The storages that one pickle names.
class Storages {
 public:
  // Opens each of them, those too that no tensor uses, so that every one's count goes down.
  static base::Result<Storages> Open(const Pickle& pickle, const OpenMemory& open);

  // The bytes of the call that would rebuild it; null if `storage` is none of those opened.
  const base::ByteSpan* Find(const Object& storage) const;
  // Of different names, together.
  std::uint64_t bytes() const { return bytes_; }
  // Whoever takes them keeps the memory there; the bytes can still be found here.
  std::vector<std::unique_ptr<Memory>> Take() { return std::exchange(memories_, {}); }

 private:
  std::map<const Object*, base::ByteSpan> spans_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::uint64_t bytes_ = 0;
};

// Is it the call of a function that rebuilds a tensor?
bool IsTensor(const Value& value);

// The checked view. `name` is for errors. kInvalidArgument for what is not a tensor in memory of
// this host's processors; there is no code for tensors on a device in this room.
base::Result<View> ReadTensor(std::string_view name, const Value& tensor, const Storages& storages);

// The sizes of a torch.Size, tuple or list; nothing if it is none, or one of them is negative.
std::optional<std::vector<std::uint64_t>> ReadSizes(const Value& value);

}  // namespace syncline::payload
