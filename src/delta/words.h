// Bytes compared eight at a time.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace syncline::delta {

// Units (of sizeof(Unit) bytes) of a word that are not zero.
template <typename Unit>
std::uint64_t NonZeroUnits(std::uint64_t word) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < 8 / sizeof(Unit); ++i) {
    count += static_cast<Unit>(word >> (i * 8 * sizeof(Unit))) != 0 ? 1 : 0;
  }
  return count;
}

// Up to eight bytes as a word, zeros above them.
inline std::uint64_t LoadUpTo8(base::ByteSpan bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), bytes.size() < 8 ? bytes.size() : 8);
  return word;
}

// Calls visit(position, old ^ new) for each 8-byte word in which two images of the same size differ, in order.
template <typename Visit>
void ForEachDifference(base::ByteSpan a, base::ByteSpan b, const Visit& visit) {
  std::uint64_t at = 0;
  for (; at + 8 <= a.size(); at += 8) {
    const std::uint64_t x =
        base::Load<std::uint64_t>(&a[at]) ^ base::Load<std::uint64_t>(&b[at]);
    if (x != 0) visit(at, x);
  }
  if (at == a.size()) return;
  const std::uint64_t x = LoadUpTo8(a.subspan(at)) ^ LoadUpTo8(b.subspan(at));
  if (x != 0) visit(at, x);
}

}  // namespace syncline::delta
