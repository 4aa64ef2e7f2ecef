// One block of memory for all parameters of a runner: an anonymous file (memfd), so that another
// process can map it. Its address never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::base {

class Arena {
 public:
  // All bytes are zero. `name` is seen in /proc. kNoSpace where the system does not give that much.
  static Result<Arena> Create(const std::string& name, std::uint64_t bytes);
  // Takes addresses and no memory: nothing may be touched that is not reserved.
  static Result<Arena> CreateEmpty(const std::string& name, std::uint64_t bytes);

  // Takes memory for a range. kNoSpace.
  Status Reserve(std::uint64_t offset, std::uint64_t bytes);
  // Gives the whole pages of a range back; they are zero when they are reserved again.
  void Release(std::uint64_t offset, std::uint64_t bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  MutableByteSpan bytes() const { return {data_, size_}; }
  int descriptor() const { return descriptor_; }

 private:
  Arena() = default;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  std::string what_;  // for messages
};

}  // namespace syncline::base
