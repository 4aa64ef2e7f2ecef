// A copy of all parameters of a runner, in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::checker {

// Not thread-safe. The memory is one mapping; each copy begins at a multiple of 64 bytes.
class Snapshot {
 public:
  // Room for slots of these sizes, without a copy yet. kLimitExceeded, with both numbers, where the
  // machine has less memory left than that.
  static base::Result<Snapshot> Create(std::span<const base::MutableByteSpan> slots);
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();

  // `slots` have the sizes of those that it was created for.
  void Copy(std::span<const base::MutableByteSpan> slots);
  // The copies, in the order of the slots.
  std::span<const base::ByteSpan> slots() const { return slots_; }

 private:
  Snapshot() = default;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::vector<base::ByteSpan> slots_;
};

}  // namespace syncline::checker
