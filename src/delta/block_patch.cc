// A record: u64 offset of the block, u32 values, u8 unit bytes, u8 kind, u8 whole, u8 0; then u16
// positions (not for a whole image) and values. Records live only as long as the pull that made
// them, so the layout may change.
#include "delta/block_patch.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Load;
using base::MutableByteSpan;

constexpr std::size_t kHeadBytes = 16;

// Calls visit(place in the tensor's bytes, place in the values, index of the unit in the block) for
// each unit.
template <typename Unit, typename Visit>
void ForEachUnit(ByteSpan positions, MutableByteSpan values, std::size_t first_byte,
                 std::byte* bytes, const Visit& visit) {
  const std::size_t count = values.size() / sizeof(Unit);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t unit = positions.empty() ? i : Load<std::uint16_t>(&positions[2 * i]);
    visit(bytes + unit * sizeof(Unit) - first_byte, &values[i * sizeof(Unit)], unit);
  }
}

// Units come in ascending order; counts the elements they fall into.
class ElementCounter {
 public:
  explicit ElementCounter(std::size_t units_per_element) : units_(units_per_element) {}
  void Add(std::size_t unit) {
    const std::size_t element = unit / units_;
    count_ += element != last_ ? 1 : 0;
    last_ = element;
  }
  std::uint64_t count() const { return count_; }

 private:
  std::size_t units_;
  std::size_t last_ = static_cast<std::size_t>(-1);
  std::uint64_t count_ = 0;
};

template <typename Unit>
std::uint64_t ExchangeXor(ByteSpan positions, MutableByteSpan values, std::size_t first_byte,
                          std::byte* bytes, std::size_t element_bytes) {
  ElementCounter counter(element_bytes > sizeof(Unit) ? element_bytes / sizeof(Unit) : 1);
  ForEachUnit<Unit>(positions, values, first_byte, bytes,
                    [&](std::byte* at, const std::byte* value, std::size_t unit) {
                      const auto x = Load<Unit>(value);
                      base::Store(at, static_cast<Unit>(Load<Unit>(at) ^ x));
                      if (x != 0) counter.Add(unit);
                    });
  return counter.count();
}

}  // namespace

BlockPatch::BlockPatch(Kind kind, std::size_t unit_bytes)
    : kind_(kind),
      unit_bytes_(unit_bytes),
      positions_(kBlockBytes / unit_bytes),
      values_(kBlockBytes) {}

void BlockPatch::AppendRecord(std::uint64_t offset, std::size_t block_bytes,
                              std::vector<std::byte>& records) const {
  if (count_ == 0) return;
  const bool whole = kind_ == Kind::kXor && count_ * (2 + unit_bytes_) > block_bytes;
  const std::size_t positions = whole ? 0 : 2 * count_;
  const std::size_t values = whole ? block_bytes : count_ * unit_bytes_;
  const std::size_t start = records.size();
  records.resize(start + kHeadBytes + positions + values);
  std::byte* out = records.data() + start;
  base::Store(out, offset);
  base::Store(out + 8, static_cast<std::uint32_t>(values / unit_bytes_));
  out[12] = static_cast<std::byte>(unit_bytes_);
  out[13] = static_cast<std::byte>(kind_);
  out[14] = static_cast<std::byte>(whole);
  out += kHeadBytes;
  if (!whole) {
    std::memcpy(out, positions_.data(), positions);
    std::memcpy(out + positions, values_.data(), values);
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    std::memcpy(out + positions_[i] * unit_bytes_, &values_[i * unit_bytes_], unit_bytes_);
  }
}

base::Result<BlockRecord> BlockRecord::Read(MutableByteSpan records) {
  const auto cut = [] { return base::Fail(base::Code::kInternal, "a change record is cut short"); };
  if (records.size() < kHeadBytes) return cut();
  BlockRecord record;
  record.block_offset_ = Load<std::uint64_t>(records.data());
  const std::size_t count = Load<std::uint32_t>(&records[8]);
  record.unit_bytes_ = static_cast<std::size_t>(records[12]);
  record.kind_ = static_cast<BlockPatch::Kind>(records[13]);
  record.whole_ = records[14] != std::byte{0};
  const std::size_t positions = record.whole_ ? 0 : 2 * count;
  const std::size_t values = count * record.unit_bytes_;
  record.record_bytes_ = kHeadBytes + positions + values;
  if (count == 0 || records.size() < record.record_bytes_) return cut();
  record.positions_ = records.subspan(kHeadBytes, positions);
  record.values_ = records.subspan(kHeadBytes + positions, values);
  if (record.whole_) {
    record.end_byte_ = values;
  } else {
    const auto at = [&](std::size_t i) {
      return Load<std::uint16_t>(&record.positions_[2 * i]) * record.unit_bytes_;
    };
    record.first_byte_ = at(0);
    record.end_byte_ = at(count - 1) + record.unit_bytes_;
  }
  return record;
}

void BlockRecord::Apply(MutableByteSpan bytes) const {
  if (kind_ == BlockPatch::Kind::kXor) {  // its own way back, so nothing has to be taken over
    (unit_bytes_ == 1
         ? ExchangeXor<std::uint8_t>
         : ExchangeXor<std::uint16_t>)(positions_, values_, first_byte_, bytes.data(), unit_bytes_);
    return;
  }
  ForEachUnit<std::uint8_t>(
      positions_, values_, first_byte_, bytes.data(),
      [](std::byte* at, const std::byte* value, std::size_t) { *at = *value; });
}

std::uint64_t BlockRecord::Exchange(MutableByteSpan bytes, std::size_t element_bytes) {
  if (kind_ == BlockPatch::Kind::kXor) {
    return (unit_bytes_ == 1 ? ExchangeXor<std::uint8_t>
                             : ExchangeXor<std::uint16_t>)(positions_, values_, first_byte_,
                                                           bytes.data(), element_bytes);
  }
  ElementCounter counter(element_bytes);
  ForEachUnit<std::uint8_t>(positions_, values_, first_byte_, bytes.data(),
                            [&](std::byte* at, std::byte* value, std::size_t unit) {
                              if (*at != *value) counter.Add(unit);
                              std::swap(*at, *value);
                            });
  return counter.count();
}

}  // namespace syncline::delta
