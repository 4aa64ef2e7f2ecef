// A record: u64 offset, u32 block bytes, u32 changed units, u8 unit bytes, u8 whole, 6 bytes zero;
// then, sparse: u16 positions, old values, new values; whole: old image, new image. Records live
// only as long as the pull that made them, so the layout may change.
#include "delta/block_changes.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Load;

constexpr std::size_t kHeadBytes = 24;

template <typename Unit>
void Scatter(ByteSpan positions, ByteSpan values, std::size_t first_byte, std::byte* bytes) {
  const std::size_t count = values.size() / sizeof(Unit);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = Load<std::uint16_t>(&positions[2 * i]) * sizeof(Unit) - first_byte;
    base::Store(bytes + at, Load<Unit>(&values[i * sizeof(Unit)]));
  }
}

}  // namespace

BlockChanges::BlockChanges(std::uint32_t unit_bytes)
    : unit_bytes_(unit_bytes),
      positions_(kBlockBytes / unit_bytes),
      old_values_(kBlockBytes),
      new_values_(kBlockBytes) {}

std::uint64_t BlockChanges::CountElements(std::uint32_t units) const {
  if (units == 1) return count_;
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    elements += i == 0 || positions_[i] / units != positions_[i - 1] / units ? 1 : 0;
  }
  return elements;
}

void BlockChanges::AppendRecord(std::uint64_t offset, ByteSpan block,
                                std::vector<std::byte>& records) const {
  if (count_ == 0) return;
  const std::size_t values = count_ * unit_bytes_;
  const std::size_t sparse = 2 * count_ + 2 * values;
  const bool whole = sparse > 2 * block.size();
  const std::size_t start = records.size();
  records.resize(start + kHeadBytes + (whole ? 2 * block.size() : sparse));
  std::byte* out = records.data() + start;
  base::Store(out, offset);
  base::Store(out + 8, static_cast<std::uint32_t>(block.size()));
  base::Store(out + 12, static_cast<std::uint32_t>(count_));
  out[16] = static_cast<std::byte>(unit_bytes_);
  out[17] = static_cast<std::byte>(whole);
  out += kHeadBytes;
  if (!whole) {
    std::memcpy(out, positions_.data(), 2 * count_);
    std::memcpy(out + 2 * count_, old_values_.data(), values);
    std::memcpy(out + 2 * count_ + values, new_values_.data(), values);
    return;
  }
  std::memcpy(out, block.data(), block.size());
  std::memcpy(out + block.size(), block.data(), block.size());
  for (std::size_t i = 0; i < count_; ++i) {
    std::memcpy(out + positions_[i] * std::size_t{unit_bytes_}, &old_values_[i * unit_bytes_],
                unit_bytes_);
  }
}

base::Result<BlockRecord> BlockRecord::Read(ByteSpan records) {
  const auto cut = [] { return base::Fail(base::Code::kInternal, "a change record is cut short"); };
  if (records.size() < kHeadBytes) return cut();
  BlockRecord record;
  record.offset_ = Load<std::uint64_t>(records.data());
  const std::size_t block_bytes = Load<std::uint32_t>(&records[8]);
  record.count_ = Load<std::uint32_t>(&records[12]);
  record.unit_bytes_ = static_cast<std::uint32_t>(records[16]);
  record.whole_ = records[17] != std::byte{0};
  const std::size_t positions = record.whole_ ? 0 : record.count_ * std::size_t{2};
  const std::size_t values =
      record.whole_ ? block_bytes : record.count_ * std::size_t{record.unit_bytes_};
  record.record_bytes_ = kHeadBytes + positions + 2 * values;
  if (records.size() < record.record_bytes_) return cut();
  record.positions_ = records.subspan(kHeadBytes, positions);
  record.old_values_ = records.subspan(kHeadBytes + positions, values);
  record.new_values_ = records.subspan(kHeadBytes + positions + values, values);
  if (record.whole_) {
    record.end_byte_ = block_bytes;
  } else {
    const auto at = [&](std::size_t i) -> std::size_t {
      return Load<std::uint16_t>(&record.positions_[2 * i]) * std::size_t{record.unit_bytes_};
    };
    record.first_byte_ = at(0);
    record.end_byte_ = at(record.count_ - 1) + record.unit_bytes_;
  }
  return record;
}

void BlockRecord::Apply(Direction direction, base::MutableByteSpan bytes) const {
  const ByteSpan values = direction == Direction::kForward ? new_values_ : old_values_;
  if (whole_) {
    std::memcpy(bytes.data(), values.data(), values.size());
  } else if (unit_bytes_ == 1) {
    Scatter<std::uint8_t>(positions_, values, first_byte_, bytes.data());
  } else {
    Scatter<std::uint16_t>(positions_, values, first_byte_, bytes.data());
  }
}

}  // namespace syncline::delta
