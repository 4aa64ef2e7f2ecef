#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace syncline::tensor {

// Incremental BLAKE3 in its plain hash mode with the default 32-byte digest, written from the
// BLAKE3 specification (O'Connor, Aumasson, Neves, Wilcox-O'Hearn: "BLAKE3: one function, fast
// everywhere"). Keyed hashing, key derivation and extended output are left out.
//
// It serves one purpose: verifying stores that another program wrote and stamped with BLAKE3.
//
//   Blake3 hash;
//   hash.Update(part1);
//   hash.Update(part2);
//   std::array<std::uint8_t, 32> digest = hash.Finish();
//
// How the input is cut into Update calls never changes the digest, but it changes the speed:
// pieces of 64 KiB and more keep all vector lanes busy, pieces below 2 KiB are hashed one chunk at
// a time.
//
// Thread safety: an object has no locks and must not be updated while another thread uses it;
// concurrent Finish calls on one object, and any use of distinct objects, are safe. Objects are
// about 3 KiB, copyable (a copy continues from the same prefix) and never allocate.
class Blake3 {
 public:
  static constexpr std::size_t kDigestBytes = 32;

  Blake3() = default;

  // Appends `data` to the message.
  void Update(std::span<const std::byte> data);

  // Returns the digest of everything appended so far; more may be appended afterwards.
  std::array<std::uint8_t, kDigestBytes> Finish() const;

 private:
  using ChainingValue = std::array<std::uint32_t, 8>;

  static constexpr std::size_t kChunkBytes = 1024;
  // A 2^64-byte message has 2^54 chunks: one open subtree for each level, and one not merged yet.
  static constexpr std::size_t kMaxOpenSubtrees = 56;

  // Hashes `chunks` whole chunks (a power of two that divides chunk_count_) and appends the result
  // to open_: the two halves' chaining values, or the one of a single chunk.
  void AbsorbSubtree(const std::byte* data, std::size_t chunks);

  // Merges what is complete in open_. Only allowed when more input follows: then no merged node is
  // the root of the tree, which is hashed differently.
  void MergeOpenSubtrees();

  // Chaining values of finished subtrees, from the left of the message to the right.
  std::array<ChainingValue, kMaxOpenSubtrees> open_{};
  std::size_t open_count_ = 0;
  std::uint64_t chunk_count_ = 0;  // whole chunks behind open_
  // The unfinished last chunk. Empty only if the message is, or if open_ has at least two entries.
  std::array<std::byte, kChunkBytes> tail_{};
  std::size_t tail_bytes_ = 0;
};

}  // namespace syncline::tensor
