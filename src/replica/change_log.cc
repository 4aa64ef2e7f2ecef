#include "replica/change_log.h"

#include <utility>

namespace syncline::replica {

using base::MutableByteSpan;
using base::Result;
using base::Status;

ChangeLog::ChangeLog(base::FileSystem& files, std::string spill_path, std::uint64_t memory_bytes,
                     std::size_t tensors)
    : files_(files),
      spill_path_(std::move(spill_path)),
      memory_left_(static_cast<std::int64_t>(memory_bytes)),
      segments_(tensors) {}

ChangeLog::~ChangeLog() {
  if (spill_ != nullptr) (void)files_.Remove(spill_path_);
}

Status ChangeLog::Append(std::size_t tensor, std::vector<std::byte> records) {
  if (records.empty()) return {};
  Segment segment{.bytes = records.size()};
  const auto size = static_cast<std::int64_t>(records.capacity());
  if (memory_left_.fetch_sub(size) >= size) {
    segment.memory = std::move(records);
  } else {
    memory_left_.fetch_add(size);
    {
      const std::scoped_lock lock(mutex_);
      if (spill_ == nullptr) {
        SYNCLINE_ASSIGN(spill_, files_.Open(spill_path_, base::OpenMode::kCreate));
      }
      segment.offset = spilled_;
      spilled_ += records.size();
    }
    SYNCLINE_TRY(spill_->WriteAt(records, segment.offset));
  }
  segments_[tensor].push_back(std::move(segment));
  return {};
}

Result<MutableByteSpan> ChangeLog::Read(std::size_t tensor, std::size_t index,
                                        std::vector<std::byte>& scratch) {
  Segment& segment = segments_[tensor][index];
  if (!segment.memory.empty()) return MutableByteSpan(segment.memory);
  scratch.resize(segment.bytes);
  SYNCLINE_TRY(base::ReadExactly(*spill_, scratch, segment.offset));
  return MutableByteSpan(scratch);
}

Status ChangeLog::Keep(std::size_t tensor, std::size_t index, base::ByteSpan records) {
  const Segment& segment = segments_[tensor][index];
  if (!segment.memory.empty()) return {};
  return spill_->WriteAt(records, segment.offset);
}

}  // namespace syncline::replica
