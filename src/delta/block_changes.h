// What a delta changes in one block of a tensor: where, the old values and the new ones. Small
// enough to keep for every block of a step, and enough to go forwards and back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/encoding.h"

namespace syncline::delta {

// Changes are kept by unit (1 or 2 bytes, tensor::UnitBytes), at most one entry a unit, in
// ascending order.
class BlockChanges {
 public:
  explicit BlockChanges(std::uint32_t unit_bytes);

  void Clear() { count_ = 0; }
  std::uint32_t unit_bytes() const { return unit_bytes_; }
  std::size_t count() const { return count_; }

  // `position`: index of the unit in its block. Unit is uint8_t or uint16_t, of unit_bytes() bytes.
  template <typename Unit>
  void Add(std::size_t position, Unit old_value, Unit new_value) {
    positions_[count_] = static_cast<std::uint16_t>(position);
    base::Store(old_values_.data() + count_ * sizeof(Unit), old_value);
    base::Store(new_values_.data() + count_ * sizeof(Unit), new_value);
    ++count_;
  }

  // Elements that changed, where an element is that many neighbouring units (1, 2 or 4).
  std::uint64_t CountElements(std::uint32_t units) const;

  // Appends a record that describes the change to a block that starts at `offset` of its tensor:
  // sparse, or where that would be larger, both images whole. Nothing is appended if nothing
  // changed. `block` is the image after the change.
  void AppendRecord(std::uint64_t offset, base::ByteSpan block,
                    std::vector<std::byte>& records) const;

 private:
  std::uint32_t unit_bytes_;
  std::size_t count_ = 0;
  std::vector<std::uint16_t> positions_;  // room for all units of a block; count_ are in use
  std::vector<std::byte> old_values_;
  std::vector<std::byte> new_values_;
};

enum class Direction { kForward, kBack };

// One record as AppendRecord wrote it.
class BlockRecord {
 public:
  // The record at the start of `records`; kInternal if it is cut short.
  static base::Result<BlockRecord> Read(base::ByteSpan records);

  std::uint64_t offset() const { return offset_; }            // of the block in its tensor
  std::size_t record_bytes() const { return record_bytes_; }  // of this record
  std::uint64_t changed_units() const { return count_; }
  // The bytes of the block that change lie in [first_byte, end_byte).
  std::size_t first_byte() const { return first_byte_; }
  std::size_t end_byte() const { return end_byte_; }

  // Sets the new (or old) values in `bytes`, the image of [first_byte(), end_byte()). Idempotent.
  void Apply(Direction direction, base::MutableByteSpan bytes) const;

 private:
  std::uint64_t offset_ = 0;
  std::size_t record_bytes_ = 0;
  std::size_t first_byte_ = 0;
  std::size_t end_byte_ = 0;
  std::uint32_t unit_bytes_ = 1;
  std::uint32_t count_ = 0;
  bool whole_ = false;
  base::ByteSpan positions_;  // u16 each; empty for a whole image
  base::ByteSpan old_values_;
  base::ByteSpan new_values_;
};

}  // namespace syncline::delta
