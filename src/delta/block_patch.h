// What a delta does to one block of a tensor, and the record of it that a journal keeps: the old
// and the new values, so that the block can be put forwards and back from any state in between.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/encoding.h"

namespace syncline::delta {

// Collects the units (of 1 or 2 bytes) of one block that a delta touches, in ascending order. Keeps
// its memory between blocks.
class BlockPatch {
 public:
  enum class Kind : std::uint8_t {
    kXor,  // the value is old ^ new, never 0
    kSet,  // the value is the new one; units of one byte
  };

  BlockPatch(Kind kind, std::size_t unit_bytes);

  void Clear() { count_ = 0; }
  std::size_t count() const { return count_; }
  Kind kind() const { return kind_; }
  std::size_t unit_bytes() const { return unit_bytes_; }

  // `position`: index of the unit in its block. Unit is uint8_t or uint16_t, of unit_bytes() bytes.
  template <typename Unit>
  void Add(std::size_t position, Unit value) {
    positions_[count_] = static_cast<std::uint16_t>(position);
    base::Store(values_.data() + count_ * sizeof(Unit), value);
    ++count_;
  }

  // Puts `block`, which starts at `offset` of its tensor, from old to new and appends the record of
  // what changed: sparse, or where that would be larger, both images whole. Units that are new
  // already are left out; nothing is appended for a block without a change. Returns how many
  // elements of element_bytes differ.
  std::uint64_t Apply(base::MutableByteSpan block, std::uint64_t offset, std::size_t element_bytes,
                      std::vector<std::byte>& records);

  // Puts `block` from old to new, and keeps no record.
  void Put(base::MutableByteSpan block) const;

  // Becomes what leads from one image of a block to the other. Of kind kXor.
  void SetDifference(base::ByteSpan old_block, base::ByteSpan new_block);

 private:
  template <typename Unit>
  std::uint64_t ApplyUnits(base::MutableByteSpan block, std::uint64_t offset,
                           std::size_t element_bytes, std::vector<std::byte>& records);

  Kind kind_;
  std::size_t unit_bytes_;
  std::size_t count_ = 0;
  std::vector<std::uint16_t> positions_;  // room for all units of a block; count_ are in use
  std::vector<std::byte> values_;
  // Of SetDifference.
  std::vector<std::byte> difference_;
  std::vector<std::uint64_t> mask_;
};

enum class Side : std::uint8_t { kOld, kNew };

// One record as BlockPatch::Apply wrote it (layout: docs/format.md), a view of its memory.
class BlockRecord {
 public:
  // The record at the start of `records`; kCorrupt if it is cut short or does not follow the
  // layout.
  static base::Result<BlockRecord> Read(base::ByteSpan records);

  std::size_t record_bytes() const { return record_bytes_; }
  // The bytes of the tensor that it touches lie in [begin, end).
  std::uint64_t begin() const { return block_offset_ + first_byte_; }
  std::uint64_t end() const { return block_offset_ + end_byte_; }
  // Does it hold every byte between them?
  bool whole() const { return whole_; }

  // The whole block that it belongs to, in the bytes of the tensor: it begins at block_offset() and
  // has kBlockBytes, or as many as the tensor has left.
  std::uint64_t block_offset() const { return block_offset_; }

  // Puts the old or the new values into the image of [begin(), end()); whatever was there before.
  void Write(Side side, base::MutableByteSpan bytes) const;
  // Calls visit(offset in the tensor, old value, new value) for each unit that it holds.
  template <typename Visit>
  void ForEachUnit(const Visit& visit) const {
    const auto all = [&]<typename Unit>(Unit) {
      for (std::size_t i = 0; i < old_values_.size() / sizeof(Unit); ++i) {
        const std::size_t unit = whole_ ? i : base::Load<std::uint16_t>(&positions_[2 * i]);
        visit(block_offset_ + unit * sizeof(Unit), base::Load<Unit>(&old_values_[i * sizeof(Unit)]),
              base::Load<Unit>(&new_values_[i * sizeof(Unit)]));
      }
    };
    if (unit_bytes_ == 1) {
      all(std::uint8_t{});
    } else {
      all(std::uint16_t{});
    }
  }
  // Is that the block as it was when Apply had changed it (by XXH3)?
  bool IsNewBlock(base::ByteSpan block) const;

 private:
  std::uint64_t block_offset_ = 0;
  std::uint64_t new_checksum_ = 0;
  std::size_t record_bytes_ = 0;
  std::size_t first_byte_ = 0;  // in the block
  std::size_t end_byte_ = 0;
  std::size_t unit_bytes_ = 1;
  bool whole_ = false;
  base::ByteSpan positions_;  // u16 each; empty for whole images
  base::ByteSpan old_values_;
  base::ByteSpan new_values_;
};

}  // namespace syncline::delta
