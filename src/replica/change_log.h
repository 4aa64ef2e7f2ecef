// The changes of one version while they wait to be written into the replica, and afterwards the way
// back: in memory up to a bound, beyond it in a file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file.h"
#include "delta/block_patch.h"

namespace syncline::replica {

// Different tensors may be used by different threads at the same time.
class ChangeLog {
 public:
  // `spill_path`: made only if memory_bytes do not suffice, removed when the log is destroyed.
  ChangeLog(base::FileSystem& files, std::string spill_path, std::uint64_t memory_bytes,
            std::size_t tensors);
  ~ChangeLog();
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  // Adds a segment of change records (delta/block_patch.h) to a tensor.
  base::Status Append(std::size_t tensor, std::vector<std::byte> records);

  std::size_t segment_count(std::size_t tensor) const { return segments_[tensor].size(); }
  // The records of a segment; `scratch` holds them where they come from the file.
  base::Result<base::MutableByteSpan> Read(std::size_t tensor, std::size_t segment,
                                           std::vector<std::byte>& scratch);
  // To be called when records that Read gave were exchanged.
  base::Status Keep(std::size_t tensor, std::size_t segment, base::ByteSpan records);

 private:
  struct Segment {
    std::vector<std::byte> memory;  // empty: in the file
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  base::FileSystem& files_;
  std::string spill_path_;
  std::atomic<std::int64_t> memory_left_;
  std::vector<std::vector<Segment>> segments_;  // by tensor
  std::mutex mutex_;
  std::unique_ptr<base::File> spill_;  // made under mutex_
  std::uint64_t spilled_ = 0;          // guarded by mutex_
};

}  // namespace syncline::replica
