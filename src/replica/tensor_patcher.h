// Puts one tensor of the replica from its old to its new state by the records of a change log, and
// back.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/change_log.h"
#include "tensor/hash.h"

namespace syncline::replica {

// Every call leaves what it touches (the tensor, or one segment of it) on disk wholly old or wholly
// new, also when it fails, unless `lost()`. One thread at a time, except that different segments
// may be exchanged by different threads.
class TensorPatcher {
 public:
  // Tensors up to this size are patched in memory as a whole and written at once; of larger ones
  // the changed blocks are read once to be checked and once to be written, segment by segment of
  // the log.
  static constexpr std::uint64_t kWholeBytes = 8 << 20;

  TensorPatcher(base::File& file, const checkpoint::CheckpointTensor& tensor, ChangeLog& log,
                std::size_t index, base::Pool<base::Buffer>& buffers)
      : file_(file), tensor_(tensor), log_(log), index_(index), buffers_(buffers) {}

  // Is the hash of what the tensor would become `expected`? With `write`, if so, a tensor of at
  // most kWholeBytes is written too.
  base::Result<bool> Check(tensor::HashKind kind, const std::string& expected, bool write);

  std::size_t segment_count() const { return new_.size(); }
  // Has the segment its new values on disk? Known after Check.
  bool is_new(std::size_t segment) const { return new_[segment] != 0; }
  // Reads the segment's blocks, exchanges old and new values, and writes them.
  base::Status Exchange(std::size_t segment);

  // Neither the new nor the old bytes of something could be written.
  bool lost() const { return lost_; }
  // Of the segments that are new.
  std::uint64_t elements_changed() const;

 private:
  base::Result<bool> CheckWhole(tensor::HashKind kind, const std::string& expected, bool write);
  base::Result<bool> CheckStream(tensor::HashKind kind, const std::string& expected);
  base::Status ExchangeRecords(base::MutableByteSpan records, std::size_t& done,
                               std::uint64_t& elements);
  std::uint64_t element_bytes() const;

  base::File& file_;
  const checkpoint::CheckpointTensor& tensor_;
  ChangeLog& log_;
  std::size_t index_;
  base::Pool<base::Buffer>& buffers_;
  std::vector<std::uint8_t> new_;        // of each segment
  std::vector<std::uint64_t> elements_;  // changed in each segment, when it was last exchanged
  std::atomic<bool> lost_ = false;
};

}  // namespace syncline::replica
