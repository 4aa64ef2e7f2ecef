// The sequences of a zstd block whose matches all repeat a zero byte: puts the literals in their
// places and skips the matches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "delta/sequence_table.h"
#include "delta/zstd_entropy.h"

namespace syncline::delta {

// Where the content of a block goes; all is zero before.
struct BlockTarget {
  std::byte* image;
  std::uint64_t* mask;     // a bit for each unit
  std::size_t unit_bytes;  // 1 or 2
  // With many literals the image is written first and searched afterwards; few are marked one by
  // one.
  bool many_literals = true;

  // Writes the literals that end the block, maybe none, and completes the mask. They begin at `at`
  // in the block.
  void PutLast(const std::byte* literals, std::size_t n, std::size_t at) const;
};

// Literals of a block. The byte before them is zero, and eight more can be read after them.
struct Literals {
  const std::byte* bytes;
  std::size_t count;
};

// What sequences used of the literals, and how long the content is that they made.
struct SequenceExtent {
  std::size_t literals = 0;
  std::size_t bytes = 0;
};

// Reads the sequences of the blocks of a frame, one block after the other.
class SparseSequences {
 public:
  static constexpr std::size_t kBatch = 256;

  // Decodes `count` > 0 sequences from `bits`. Nothing if one of them is not known to repeat a
  // zero, takes more literals than there are, or passes `limit`, or if the bits do not end where
  // the sequences do: the library has to look at the frame. zero_before: the block follows a zero.
  std::optional<SequenceExtent> Put(const SequenceTables& tables, BackwardBits bits,
                                    std::size_t count, Literals literals, std::size_t limit,
                                    bool zero_before, const BlockTarget& target);

  // The last three offsets, which short codes refer to.
  class OffsetHistory {
   public:
    // The offset that the value of an offset code stands for, after a sequence with or without
    // literals.
    std::uint64_t Resolve(std::uint64_t value, bool literals);
    bool LastIsOne() const { return last_[0] == 1; }
    bool LastTwoAreOne() const { return last_[0] == 1 && last_[1] == 1; }

   private:
    std::array<std::uint64_t, 3> last_ = {1, 4, 8};
  };

  // Decoding goes by batches: some sequences are decoded, then their literals put in their places.
  struct Batch {
    const SequenceTables* tables = nullptr;
    BackwardBits bits = {};
    OffsetHistory history = {};
    std::size_t left = 0;                      // to decode
    std::array<std::uint64_t, 3> states = {};  // of the next sequence, by SequencePart

    std::size_t size = 0;
    std::array<std::uint32_t, kBatch> literals;
    std::array<std::uint32_t, kBatch> bytes;  // literals and match
  };

 private:
  Batch batch_;
};

}  // namespace syncline::delta
