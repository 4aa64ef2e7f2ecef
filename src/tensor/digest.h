// The additive digest of a tensor: a sum over its units, each multiplied by a key of its place. So
// it can be had of pieces, in any order and on any machine, and follows a change from the changed
// units alone. The definition stands in docs/format.md.
//
// It is a multilinear hash (Carter and Wegman; Lemire and Kaser) in two lanes of 64 bits. Its keys
// are fixed and public: it tells accidents, of which about one in 2^60 would go unseen, and is no
// defence against who wants two tensors to have the same digest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace syncline::tensor {

// Sums and differences are those of the two lanes, each modulo 2^64.
struct Digest {
  std::uint64_t low = 0;   // lane 0
  std::uint64_t high = 0;  // lane 1

  bool operator==(const Digest&) const = default;
  Digest& operator+=(const Digest& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  Digest& operator-=(const Digest& other) {
    low -= other.low;
    high -= other.high;
    return *this;
  }
  friend Digest operator+(Digest a, const Digest& b) { return a += b; }
  friend Digest operator-(Digest a, const Digest& b) { return a -= b; }

  // 32 lower-case hex digits: `high`, then `low`.
  std::string Hex() const;
  // Nothing where that is not what Hex() writes.
  static std::optional<Digest> Parse(std::string_view hex);
};

// The digest of `bytes`, whole units of unit_bytes (1, 2 or 4; DigestUnitBytes in dtype.h) each, of
// which the first is number first_unit of its tensor. The digest of a tensor is the sum of those of
// its pieces, however it is cut. One thread, at about the speed of memory.
Digest DigestOf(base::ByteSpan bytes, std::size_t unit_bytes, std::uint64_t first_unit = 0);

// Units of a block: the key of unit i is the product of a key of i % kDigestBlock and a key of
// i / kDigestBlock.
inline constexpr std::uint64_t kDigestBlock = 4096;

// The keys of places in a block, of each lane: odd.
extern const std::array<std::array<std::uint32_t, kDigestBlock>, 2> kDigestPlaceKeys;

// Output number `index` (the first is 0) of the generator SplitMix64 (Steele, Lea and Flood) that
// starts from `seed`.
constexpr std::uint64_t SplitMix64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e37'79b9'7f4a'7c15;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
  return z ^ (z >> 31);
}

// The key of a block, of each lane (0 or 1): odd.
constexpr std::uint64_t DigestBlockKey(std::uint64_t block, std::uint64_t lane) {
  constexpr std::uint64_t kSeed = 0x5379'6e63'6c69'6e65;  // "Syncline"
  return SplitMix64(kSeed, 2 * block + lane) | 1;
}

// What changes do to the digest of a tensor. A few cycles each, where they come block by block. One
// thread.
class DigestChange {
 public:
  // unit_bytes: 1, 2 or 4, as in DigestOf.
  explicit DigestChange(std::size_t unit_bytes) : unit_bytes_(unit_bytes) {}

  // Unit number `unit` was old_bits and is new_bits.
  void Add(std::uint64_t unit, std::uint64_t old_bits, std::uint64_t new_bits) {
    if (unit / kDigestBlock != block_) Turn(unit / kDigestBlock);
    const std::uint64_t difference = new_bits - old_bits;
    sums_.low += kDigestPlaceKeys[0][unit % kDigestBlock] * difference;
    sums_.high += kDigestPlaceKeys[1][unit % kDigestBlock] * difference;
  }

  // The little-endian number at that byte of the tensor, which is a unit or a part of one, was
  // old_bits and is new_bits.
  void AddAt(std::uint64_t byte, std::uint64_t old_bits, std::uint64_t new_bits) {
    const std::uint64_t shift = 8 * (byte % unit_bytes_);
    Add(byte / unit_bytes_, old_bits << shift, new_bits << shift);
  }

  // Of the new tensor less that of the old one.
  Digest difference() const { return difference_ + Scaled(); }

 private:
  Digest Scaled() const {
    return {DigestBlockKey(block_, 0) * sums_.low, DigestBlockKey(block_, 1) * sums_.high};
  }

  void Turn(std::uint64_t block) {
    difference_ += Scaled();
    sums_ = {};
    block_ = block;
  }

  std::size_t unit_bytes_;
  std::uint64_t block_ = 0;
  Digest sums_;        // of the block, without its key
  Digest difference_;  // of all blocks before
};

}  // namespace syncline::tensor
