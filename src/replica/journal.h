// The journal of one apply: everything that is needed to carry it out again, or to take it back,
// after the process or the machine died at any moment of it. Byte layout: docs/format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "replica/state.h"

namespace syncline::replica {

// A tensor that the apply changes.
struct JournalTensor {
  std::string name;
  std::string file;          // relative to the replica
  std::uint64_t offset = 0;  // in that file
  std::uint64_t bytes = 0;
  TensorHash before;  // may be empty: not known
  TensorHash after;
};

struct JournalHead {
  std::string boot_id;  // of the kernel that the apply ran under
  HeldVersion from;     // what its marker says before
  HeldVersion to;       // and after
  std::vector<JournalTensor> tensors;

  // Names of the tensors, and of the files that they lie in.
  std::set<std::string> TensorNames() const;
  std::set<std::string> FileNames() const;
};

// Writes a journal; nothing counts before Commit(). Append may be called from several threads.
class JournalWriter {
 public:
  static base::Result<std::unique_ptr<JournalWriter>> Create(base::FileSystem& files,
                                                             const std::string& path,
                                                             const JournalHead& head);
  // Adds change records (delta/block_patch.h) of tensor number `tensor` of the head; at most
  // kMaxSegmentBytes.
  base::Status Append(std::uint32_t tensor, base::ByteSpan records);
  // Writes the directory and syncs the file; returns its size. The name is durable once the
  // directory that it is in was synced.
  base::Result<std::uint64_t> Commit();

 private:
  JournalWriter() = default;
  struct Segment {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t tensor = 0;
    std::uint64_t checksum = 0;
  };

  std::unique_ptr<base::File> file_;
  std::uint64_t head_checksum_ = 0;
  std::mutex mutex_;
  std::vector<Segment> segments_;  // guarded by mutex_
  std::uint64_t end_ = 0;          // guarded by mutex_
};

// A whole journal. Immutable; thread-safe.
class Journal {
 public:
  static constexpr std::uint64_t kMaxSegmentBytes = 4 << 20;

  // Checks everything but the segments' contents: kCorrupt (naming the file) if it was not
  // committed, or a part of it is damaged.
  static base::Result<Journal> Open(base::FileSystem& files, const std::string& path);
  static base::Result<Journal> Read(std::unique_ptr<base::File> file);

  const JournalHead& head() const { return head_; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t segment_count() const { return segments_.size(); }
  std::uint32_t tensor_of(std::size_t segment) const { return segments_[segment].tensor; }
  std::uint64_t bytes_of(std::size_t segment) const { return segments_[segment].bytes; }
  // The records of a segment, all of them checked: they follow the layout and stay inside their
  // tensor. kCorrupt otherwise.
  base::Result<base::ByteSpan> ReadSegment(std::size_t segment,
                                           std::vector<std::byte>& buffer) const;

 private:
  struct Segment {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t tensor = 0;
    std::uint64_t checksum = 0;
  };

  std::unique_ptr<base::File> file_;
  JournalHead head_;
  std::uint64_t bytes_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace syncline::replica
