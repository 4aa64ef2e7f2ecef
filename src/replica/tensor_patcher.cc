// A record exchanges old and new values, so the same walk over the records goes forwards and back.
// A failed write is followed by writing the old bytes of the same range, which the walk still has
// in memory; a walk that fails later goes back over what it has done. Thus the unit of failure is
// the segment, or of a tensor that is written at once the tensor.
#include "replica/tensor_patcher.h"

#include <algorithm>

#include "delta/block_patch.h"

namespace syncline::replica {
namespace {

using base::MutableByteSpan;
using base::Result;
using base::Status;
using delta::BlockRecord;

// Calls visit(record) for each record; stops at an error.
template <typename Visit>
Status ForEachRecord(MutableByteSpan records, const Visit& visit) {
  while (!records.empty()) {
    SYNCLINE_ASSIGN(BlockRecord record, BlockRecord::Read(records));
    SYNCLINE_TRY(visit(record));
    records = records.subspan(record.record_bytes());
  }
  return {};
}

MutableByteSpan Part(MutableByteSpan image, const BlockRecord& record) {
  return image.subspan(record.begin(), record.end() - record.begin());
}

}  // namespace

std::uint64_t TensorPatcher::element_bytes() const {
  return std::max<std::uint64_t>(Bits(tensor_.dtype) / 8, 1);
}

std::uint64_t TensorPatcher::elements_changed() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < new_.size(); ++i) sum += is_new(i) ? elements_[i] : 0;
  return sum;
}

Result<bool> TensorPatcher::Check(tensor::HashKind kind, const std::string& expected, bool write) {
  new_.assign(log_.segment_count(index_), 0);
  elements_.assign(new_.size(), 0);
  return tensor_.bytes <= kWholeBytes ? CheckWhole(kind, expected, write)
                                      : CheckStream(kind, expected);
}

Result<bool> TensorPatcher::CheckWhole(tensor::HashKind kind, const std::string& expected,
                                       bool write) {
  const base::Pool<base::Buffer>::Lease buffer(buffers_);
  const MutableByteSpan image = buffer->Get(tensor_.bytes);
  SYNCLINE_TRY(base::ReadExactly(file_, image, tensor_.offset));
  std::uint64_t begin = tensor_.bytes;
  std::uint64_t end = 0;
  const auto exchange = [&]() -> Status {
    std::vector<std::byte> scratch;
    for (std::size_t i = 0; i < new_.size(); ++i) {
      SYNCLINE_ASSIGN(const MutableByteSpan records, log_.Read(index_, i, scratch));
      elements_[i] = 0;
      SYNCLINE_TRY(ForEachRecord(records, [&](BlockRecord& record) -> Status {
        elements_[i] += record.Exchange(Part(image, record), element_bytes());
        begin = std::min(begin, record.begin());
        end = std::max(end, record.end());
        return {};
      }));
      SYNCLINE_TRY(log_.Keep(index_, i, records));
    }
    return {};
  };
  SYNCLINE_TRY(exchange());
  if (tensor::HashHex(kind, image) != expected) return false;
  if (!write || end == 0) return true;
  const MutableByteSpan range = image.subspan(begin, end - begin);
  Status status = file_.WriteAt(range, tensor_.offset + begin);
  if (!status) {
    const Status back = exchange();
    lost_ = !back || !file_.WriteAt(range, tensor_.offset + begin);
    return std::unexpected(std::move(status).error());
  }
  std::ranges::fill(new_, std::uint8_t{1});
  return true;
}

Result<bool> TensorPatcher::CheckStream(tensor::HashKind kind, const std::string& expected) {
  const auto hasher = tensor::MakeHasher(kind);
  std::vector<std::byte> buffer(delta::kBlockBytes);
  std::vector<std::byte> scratch;
  std::uint64_t done = 0;  // bytes of the tensor that were hashed
  const auto hash_block = [&](const BlockRecord* record) -> Status {
    const MutableByteSpan block =
        std::span(buffer).first(std::min<std::uint64_t>(delta::kBlockBytes, tensor_.bytes - done));
    SYNCLINE_TRY(base::ReadExactly(file_, block, tensor_.offset + done));
    if (record != nullptr) {
      record->Apply(block.subspan(record->begin() - done, record->end() - record->begin()));
    }
    hasher->Update(block);
    done += block.size();
    return {};
  };
  for (std::size_t i = 0; i < log_.segment_count(index_); ++i) {
    SYNCLINE_ASSIGN(const MutableByteSpan records, log_.Read(index_, i, scratch));
    SYNCLINE_TRY(ForEachRecord(records, [&](const BlockRecord& record) -> Status {
      while (done + delta::kBlockBytes <= record.begin()) SYNCLINE_TRY(hash_block(nullptr));
      return hash_block(&record);
    }));
  }
  while (done < tensor_.bytes) SYNCLINE_TRY(hash_block(nullptr));
  return hasher->Hex() == expected;
}

// Exchanges record after record; `done` counts the bytes of those that were carried out.
Status TensorPatcher::ExchangeRecords(MutableByteSpan records, std::size_t& done,
                                      std::uint64_t& elements) {
  const base::Pool<base::Buffer>::Lease buffer(buffers_);
  const MutableByteSpan memory = buffer->Get(2 * delta::kBlockBytes);
  return ForEachRecord(records, [&](BlockRecord& record) -> Status {
    const std::size_t size = record.end() - record.begin();
    const std::uint64_t offset = tensor_.offset + record.begin();
    const MutableByteSpan old_bytes = memory.first(size);
    const MutableByteSpan new_bytes = memory.subspan(delta::kBlockBytes, size);
    SYNCLINE_TRY(base::ReadExactly(file_, old_bytes, offset));
    std::ranges::copy(old_bytes, new_bytes.begin());
    const std::uint64_t changed = record.Exchange(new_bytes, element_bytes());
    if (Status status = file_.WriteAt(new_bytes, offset); !status) {
      record.Exchange(new_bytes, element_bytes());
      if (!file_.WriteAt(old_bytes, offset)) lost_ = true;
      return status;
    }
    elements += changed;
    done += record.record_bytes();
    return {};
  });
}

Status TensorPatcher::Exchange(std::size_t segment) {
  std::vector<std::byte> scratch;
  SYNCLINE_ASSIGN(const MutableByteSpan records, log_.Read(index_, segment, scratch));
  std::size_t done = 0;
  std::uint64_t elements = 0;
  Status status = ExchangeRecords(records, done, elements);
  if (status) status = log_.Keep(index_, segment, records);
  if (status) {
    elements_[segment] = elements;
    new_[segment] ^= 1;
    return {};
  }
  if (lost_) return status;
  std::size_t undone = 0;
  std::uint64_t ignored = 0;
  if (!ExchangeRecords(records.first(done), undone, ignored)) lost_ = true;
  return status;
}

}  // namespace syncline::replica
