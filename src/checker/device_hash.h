// The 64-bit hash that SGLang's weight checker computes for a tensor on a GPU, here by the
// processor. The definition stands in docs/format.md.
//
// It is a sum over tiles of 8192 words of 32 bits, so pieces of a tensor can be hashed in any order
// and on any thread, and put together:
//
//   DeviceHash a(total), b(total);
//   a.Add(0, first_half);
//   b.Add(first_half.size(), second_half);
//   a.Merge(b);
//   a.Value();
//
// It tells accidents from each other, and is no defence against anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/bytes.h"

namespace syncline::checker {

// One thread at a time.
class DeviceHash {
 public:
  static constexpr std::uint64_t kTileBytes = std::uint64_t{8192} * 4;

  // bytes: of the whole tensor.
  explicit DeviceHash(std::uint64_t bytes) : bytes_(bytes) {}

  // The bytes of the tensor from `offset` on, a multiple of 4, each to be given once. They end at a
  // multiple of 4 or at the end of the tensor.
  void Add(std::uint64_t offset, base::ByteSpan bytes);
  // What was added to another one of the same tensor.
  void Merge(const DeviceHash& other);
  // When all bytes were added; 0 for an empty tensor.
  std::uint64_t Value() const;
  // That in 16 lower-case hex digits.
  std::string Hex() const;

 private:
  struct Sums {
    std::uint32_t first = 0;
    std::uint32_t second = 0;
  };
  std::uint64_t ValueOf(Sums tile) const;

  std::uint64_t bytes_;
  std::uint64_t sum_ = 0;               // of tiles that came whole
  std::map<std::uint64_t, Sums> open_;  // by number: of which pieces came
};

}  // namespace syncline::checker
