// The changes of one version while they wait to be written into the replica: in memory up to a
// bound, beyond it in a file.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file.h"
#include "delta/block_changes.h"

namespace syncline::replica {

// Append may be called from several threads; reading starts when appending has ended.
class ChangeLog {
 public:
  // `spill_path`: made only if memory_bytes do not suffice, removed when the log is destroyed.
  ChangeLog(base::FileSystem& files, std::string spill_path, std::uint64_t memory_bytes);
  ~ChangeLog();
  ChangeLog(const ChangeLog&) = delete;
  ChangeLog& operator=(const ChangeLog&) = delete;

  // Change records (delta/block_changes.h) of one tensor.
  base::Status Append(std::size_t tensor, std::vector<std::byte> records);

  std::size_t segment_count() const { return segments_.size(); }
  std::size_t tensor(std::size_t segment) const { return segments_[segment].tensor; }
  // Its records; `scratch` keeps them where they come from the file.
  base::Result<base::ByteSpan> Read(std::size_t segment, std::vector<std::byte>& scratch) const;

 private:
  struct Segment {
    std::size_t tensor;
    std::vector<std::byte> memory;  // empty: in the file
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  base::FileSystem& files_;
  std::string spill_path_;
  std::uint64_t memory_left_;
  std::mutex mutex_;
  std::vector<Segment> segments_;
  std::unique_ptr<base::File> spill_;
  std::uint64_t spilled_ = 0;
};

}  // namespace syncline::replica
