#include "replica/change_log.h"

#include <utility>

namespace syncline::replica {

using base::Result;
using base::Status;

ChangeLog::ChangeLog(base::FileSystem& files, std::string spill_path, std::uint64_t memory_bytes)
    : files_(files), spill_path_(std::move(spill_path)), memory_left_(memory_bytes) {}

ChangeLog::~ChangeLog() {
  if (spill_ != nullptr) (void)files_.Remove(spill_path_);
}

Status ChangeLog::Append(std::size_t tensor, std::vector<std::byte> records) {
  if (records.empty()) return {};
  const std::scoped_lock lock(mutex_);
  Segment segment{.tensor = tensor, .memory = {}, .offset = 0, .bytes = records.size()};
  if (records.size() <= memory_left_) {
    memory_left_ -= records.size();
    segment.memory = std::move(records);
  } else {
    if (spill_ == nullptr) {
      SYNCLINE_ASSIGN(spill_, files_.Open(spill_path_, base::OpenMode::kCreate));
    }
    SYNCLINE_TRY(spill_->WriteAt(records, spilled_));
    segment.offset = spilled_;
    spilled_ += records.size();
  }
  segments_.push_back(std::move(segment));
  return {};
}

Result<base::ByteSpan> ChangeLog::Read(std::size_t index, std::vector<std::byte>& scratch) const {
  const Segment& segment = segments_[index];
  if (!segment.memory.empty()) return base::ByteSpan(segment.memory);
  scratch.resize(segment.bytes);
  SYNCLINE_TRY(base::ReadExactly(*spill_, scratch, segment.offset));
  return base::ByteSpan(scratch);
}

}  // namespace syncline::replica
