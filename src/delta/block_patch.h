// What a delta does to one block of a tensor, in a form that is small enough to keep for every
// block of a step.
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

  // Appends a record of what was collected for the block that starts at `offset` of its tensor:
  // sparse, or where that would be larger, the xor image whole. Nothing is appended for an
  // untouched block.
  void AppendRecord(std::uint64_t offset, std::size_t block_bytes,
                    std::vector<std::byte>& records) const;

 private:
  Kind kind_;
  std::size_t unit_bytes_;
  std::size_t count_ = 0;
  std::vector<std::uint16_t> positions_;  // room for all units of a block; count_ are in use
  std::vector<std::byte> values_;
};

// One record as AppendRecord wrote it, a view of its memory.
class BlockRecord {
 public:
  // The record at the start of `records`; kInternal if it is cut short.
  static base::Result<BlockRecord> Read(base::MutableByteSpan records);

  std::size_t record_bytes() const { return record_bytes_; }
  // The bytes of the tensor that it touches lie in [begin, end).
  std::uint64_t begin() const { return block_offset_ + first_byte_; }
  std::uint64_t end() const { return block_offset_ + end_byte_; }

  // Both take the image of [begin(), end()).
  // From old to new; the record stays as it is.
  void Apply(base::MutableByteSpan bytes) const;
  // From old to new, while the record takes the old values: the next Exchange goes back. Returns
  // how many elements of element_bytes differ.
  std::uint64_t Exchange(base::MutableByteSpan bytes, std::size_t element_bytes);

 private:
  std::uint64_t block_offset_ = 0;
  std::size_t record_bytes_ = 0;
  std::size_t first_byte_ = 0;  // in the block
  std::size_t end_byte_ = 0;
  std::size_t unit_bytes_ = 1;
  BlockPatch::Kind kind_ = BlockPatch::Kind::kXor;
  bool whole_ = false;
  base::ByteSpan positions_;  // u16 each; empty for a whole image
  base::MutableByteSpan values_;
};

}  // namespace syncline::delta
