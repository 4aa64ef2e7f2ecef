#include "delta/block_patch.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Load;
using base::MutableByteSpan;

// u64 offset of the block, u32 number of units, u8 bytes of a unit, u8 whole, u16 0, u64 XXH3 of the
// new block; then u16 positions (not if whole), old values, new values.
constexpr std::size_t kHeadBytes = 24;

std::unexpected<base::Error> Corrupt(std::string_view what) {
  return base::Fail(base::Code::kCorrupt, fmt::format("a change record {}", what));
}

}  // namespace

BlockPatch::BlockPatch(Kind kind, std::size_t unit_bytes)
    : kind_(kind),
      unit_bytes_(unit_bytes),
      positions_(kBlockBytes / unit_bytes),
      values_(kBlockBytes) {}

template <typename Unit>
std::uint64_t BlockPatch::ApplyUnits(MutableByteSpan block, std::uint64_t offset,
                                     std::size_t element_bytes, std::vector<std::byte>& records) {
  // Unchanged units are squeezed out, and values_ becomes the new values.
  const std::size_t units_per_element =
      element_bytes > sizeof(Unit) ? element_bytes / sizeof(Unit) : 1;
  std::size_t kept = 0;
  std::uint64_t elements = 0;
  std::size_t last_element = static_cast<std::size_t>(-1);
  const std::size_t start = records.size();
  records.resize(start + kHeadBytes + count_ * (2 + 2 * sizeof(Unit)));
  std::byte* const positions = records.data() + start + kHeadBytes;
  std::byte* const old_values = positions + 2 * count_;
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t position = positions_[i];
    std::byte* const at = block.data() + position * sizeof(Unit);
    const Unit before = Load<Unit>(at);
    const Unit value = Load<Unit>(&values_[i * sizeof(Unit)]);
    const Unit after = kind_ == Kind::kXor ? static_cast<Unit>(before ^ value) : value;
    if (after == before) continue;
    const std::size_t element = position / units_per_element;
    elements += element != last_element ? 1 : 0;
    last_element = element;
    base::Store(positions + 2 * kept, positions_[i]);
    base::Store(old_values + kept * sizeof(Unit), before);
    base::Store(&values_[kept * sizeof(Unit)], after);
    base::Store(at, after);
    ++kept;
  }
  if (kept == 0) {
    records.resize(start);
    return 0;
  }
  const bool whole = kept * (2 + 2 * sizeof(Unit)) > 2 * block.size();
  const std::size_t units = whole ? block.size() / sizeof(Unit) : kept;
  if (whole) {
    std::vector<std::byte> before(block.begin(), block.end());
    for (std::size_t i = 0; i < kept; ++i) {
      const std::size_t position = Load<std::uint16_t>(positions + 2 * i);
      std::memcpy(&before[position * sizeof(Unit)], old_values + i * sizeof(Unit), sizeof(Unit));
    }
    records.resize(start + kHeadBytes + 2 * block.size());
    std::memcpy(&records[start + kHeadBytes], before.data(), block.size());
    std::memcpy(&records[start + kHeadBytes + block.size()], block.data(), block.size());
  } else {
    std::memmove(positions + 2 * kept, old_values, kept * sizeof(Unit));
    std::memcpy(positions + kept * (2 + sizeof(Unit)), values_.data(), kept * sizeof(Unit));
    records.resize(start + kHeadBytes + kept * (2 + 2 * sizeof(Unit)));
  }
  std::byte* const head = records.data() + start;
  base::Store(head, offset);
  base::Store(head + 8, static_cast<std::uint32_t>(units));
  base::Store(head + 12, static_cast<std::uint8_t>(sizeof(Unit)));
  base::Store(head + 13, static_cast<std::uint8_t>(whole));
  base::Store(head + 14, std::uint16_t{0});
  base::Store(head + 16, std::uint64_t{XXH3_64bits(block.data(), block.size())});
  return elements;
}

std::uint64_t BlockPatch::Apply(MutableByteSpan block, std::uint64_t offset,
                                std::size_t element_bytes, std::vector<std::byte>& records) {
  if (count_ == 0) return 0;
  return unit_bytes_ == 1 ? ApplyUnits<std::uint8_t>(block, offset, element_bytes, records)
                          : ApplyUnits<std::uint16_t>(block, offset, element_bytes, records);
}

void BlockPatch::Put(MutableByteSpan block) const {
  const auto put = [&]<typename Unit>(Unit) {
    for (std::size_t i = 0; i < count_; ++i) {
      std::byte* const at = block.data() + positions_[i] * sizeof(Unit);
      const Unit value = Load<Unit>(&values_[i * sizeof(Unit)]);
      base::Store(at, kind_ == Kind::kXor ? static_cast<Unit>(Load<Unit>(at) ^ value) : value);
    }
  };
  if (unit_bytes_ == 1) {
    put(std::uint8_t{});
  } else {
    put(std::uint16_t{});
  }
}

void BlockPatch::SetDifference(ByteSpan old_block, ByteSpan new_block) {
  Clear();
  difference_.resize(old_block.size());
  mask_.resize(tensor::MaskWords(old_block.size(), unit_bytes_));
  tensor::XorWithMask(old_block.data(), new_block.data(), old_block.size(), unit_bytes_,
                      difference_.data(), mask_.data());
  const auto add = [&]<typename Unit>(Unit) {
    tensor::ForEachSet(mask_.data(), mask_.size(), [&](std::size_t unit) {
      Add(unit, Load<Unit>(&difference_[unit * sizeof(Unit)]));
    });
  };
  if (unit_bytes_ == 1) {
    add(std::uint8_t{});
  } else {
    add(std::uint16_t{});
  }
}

base::Result<BlockRecord> BlockRecord::Read(ByteSpan records) {
  if (records.size() < kHeadBytes) return Corrupt("is cut short");
  BlockRecord record;
  record.block_offset_ = Load<std::uint64_t>(records.data());
  const std::size_t count = Load<std::uint32_t>(&records[8]);
  record.unit_bytes_ = Load<std::uint8_t>(&records[12]);
  const auto whole = Load<std::uint8_t>(&records[13]);
  record.new_checksum_ = Load<std::uint64_t>(&records[16]);
  if (record.unit_bytes_ != 1 && record.unit_bytes_ != 2) return Corrupt("has odd units");
  if (whole > 1 || count == 0 || count * record.unit_bytes_ > kBlockBytes ||
      record.block_offset_ % kBlockBytes != 0 ||
      record.block_offset_ > std::numeric_limits<std::uint64_t>::max() - kBlockBytes) {
    return Corrupt("is no record of a block");
  }
  record.whole_ = whole != 0;
  const std::size_t positions = record.whole_ ? 0 : 2 * count;
  const std::size_t values = count * record.unit_bytes_;
  record.record_bytes_ = kHeadBytes + positions + 2 * values;
  if (records.size() < record.record_bytes_) return Corrupt("is cut short");
  record.positions_ = records.subspan(kHeadBytes, positions);
  record.old_values_ = records.subspan(kHeadBytes + positions, values);
  record.new_values_ = records.subspan(kHeadBytes + positions + values, values);
  if (record.whole_) {
    record.end_byte_ = values;
    return record;
  }
  std::size_t next = 0;  // first unit that the next position may name
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t position = Load<std::uint16_t>(&record.positions_[2 * i]);
    if (position < next || (position + 1) * record.unit_bytes_ > kBlockBytes) {
      return Corrupt("has positions out of order");
    }
    next = position + 1;
  }
  record.first_byte_ = Load<std::uint16_t>(record.positions_.data()) * record.unit_bytes_;
  record.end_byte_ = next * record.unit_bytes_;
  return record;
}

bool BlockRecord::IsNewBlock(ByteSpan block) const {
  return XXH3_64bits(block.data(), block.size()) == new_checksum_;
}

void BlockRecord::Write(Side side, MutableByteSpan bytes) const {
  const ByteSpan values = side == Side::kOld ? old_values_ : new_values_;
  if (whole_) {
    std::ranges::copy(values, bytes.begin());
    return;
  }
  const auto write = [&]<typename Unit>(Unit) {
    for (std::size_t i = 0; i < values.size() / sizeof(Unit); ++i) {
      const std::size_t unit = Load<std::uint16_t>(&positions_[2 * i]);
      std::memcpy(&bytes[unit * sizeof(Unit) - first_byte_], &values[i * sizeof(Unit)],
                  sizeof(Unit));
    }
  };
  if (unit_bytes_ == 1) {
    write(std::uint8_t{});
  } else {
    write(std::uint16_t{});
  }
}

}  // namespace syncline::delta
