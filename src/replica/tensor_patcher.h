// Puts one tensor of the replica from its old to its new state by the records of a change log, and
// back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/change_log.h"
#include "tensor/hash.h"

namespace syncline::replica {

// Used by one thread at a time. Every call leaves the tensor on disk wholly old or wholly new, also
// when it fails, unless `lost()`.
class TensorPatcher {
 public:
  // Tensors up to this size are patched in memory as a whole and written at once; of larger ones
  // the changed blocks are read once to be checked and once to be written.
  static constexpr std::uint64_t kWholeBytes = 8 << 20;

  TensorPatcher(base::File& file, const checkpoint::CheckpointTensor& tensor, ChangeLog& log,
                std::size_t index, base::Pool<base::Buffer>& buffers)
      : file_(file), tensor_(tensor), log_(log), index_(index), buffers_(buffers) {}

  // Is the hash of what the tensor would become `expected`?
  // `write`: if so, and the tensor is at most kWholeBytes, it is written too.
  base::Result<bool> Check(tensor::HashKind kind, const std::string& expected, bool write);
  // Writes what Check left to be written.
  base::Status Write();
  // Back to the old state, if the tensor was written.
  base::Status Undo();

  bool written() const { return written_; }
  // Neither the new nor the old bytes could be written.
  bool lost() const { return lost_; }
  // Known once it is written.
  std::uint64_t elements_changed() const { return elements_changed_; }

 private:
  base::Result<bool> CheckWhole(tensor::HashKind kind, const std::string& expected, bool write);
  base::Result<bool> CheckStream(tensor::HashKind kind, const std::string& expected);
  base::Status ExchangeBlocks();
  base::Status ExchangeSegment(std::size_t segment);
  base::Status WriteOrRestore(base::ByteSpan new_bytes, base::ByteSpan old_bytes,
                              std::uint64_t offset);
  std::uint64_t element_bytes() const;

  base::File& file_;
  const checkpoint::CheckpointTensor& tensor_;
  ChangeLog& log_;
  std::size_t index_;
  base::Pool<base::Buffer>& buffers_;
  bool written_ = false;
  bool lost_ = false;
  std::uint64_t elements_changed_ = 0;
};

}  // namespace syncline::replica
