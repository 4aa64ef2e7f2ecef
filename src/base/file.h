// Everything that the project asks of a file system, behind one interface, so that tests can record
// calls and make them fail.
//
// Paths are UTF-8 byte strings. Every error names the path. All calls are thread-safe except where
// said.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::base {

enum class OpenMode {
  kRead,           // must exist
  kReadWrite,      // must exist
  kCreate,         // read and write; made if missing, emptied if there
  kCreateNew,      // read and write; must not exist
  kCreatePrivate,  // as kCreateNew; nobody but the owner may open it
};

struct FileInfo {
  enum class Kind { kFile, kDirectory, kOther };
  Kind kind = Kind::kOther;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  // since the epoch
  // Of what the file is by itself, where the file system has them: they change with the content even
  // if somebody sets modified_ns back, or puts another file in its place.
  std::int64_t changed_ns = 0;
  std::uint64_t number = 0;  // inode
  std::uint64_t device = 0;  // that the file system lies on
};

// A mapped range of a file; unmapped when destroyed. Holds whole-file mappings only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  ByteSpan bytes() const { return {data_, size_}; }
  // Only for a mapping made writable.
  MutableByteSpan mutable_bytes() { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class File {
 public:
  virtual ~File() = default;

  virtual const std::string& path() const = 0;
  virtual Result<FileInfo> Stat() = 0;
  // Reads up to into.size() bytes at `offset`; fewer only at the end of the file.
  virtual Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) = 0;
  // Writes all of `from`, or fails; a failed write may have written a part.
  virtual Status WriteAt(ByteSpan from, std::uint64_t offset) = 0;
  // Sets the size and reserves blocks for all of it, so that a full disk is an error here and not
  // later.
  virtual Status Allocate(std::uint64_t size) = 0;
  virtual Status Truncate(std::uint64_t size) = 0;
  // Data (and what is needed to find it) is on the device when this returns.
  virtual Status Sync() = 0;
  // The whole file; stores through a writable mapping reach the file.
  virtual Result<Mapping> Map(bool writable) = 0;
};

// An advisory lock on a file that is made if missing, released when destroyed (or when the process
// dies).
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class LockMode { kShared, kExclusive };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The real one; lives for ever.
  static FileSystem& Posix();

  virtual Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  // Follows links.
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  // Names in a directory without "." and "..", sorted.
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;
  // Makes the directory and its parents; fine if it is there.
  virtual Status MakeDirectories(const std::string& path) = 0;
  // Replaces `to` if it is there and of the same kind.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;
  // Removes a file or a tree, without following links; fine if nothing is there.
  virtual Status RemoveAll(const std::string& path) = 0;
  // Names made, renamed or removed in the directory are on the device when this returns.
  virtual Status SyncDirectory(const std::string& path) = 0;
  // flock(2). When `wait` is false and another holds it: kLocked.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::string& path, LockMode mode,
                                                 bool wait) = 0;

  // These two ask the real file system unless they are overridden.
  // Bytes that an ordinary user may still write to the file system that `path` (which is there)
  // lies on.
  virtual Result<std::uint64_t> FreeBytes(const std::string& path);
  // Is it a link, or a file that another name leads to as well, so that writing to it would change
  // what somebody else sees?
  virtual Result<bool> IsShared(const std::string& path);
};

// "a/b"; a trailing slash of `a` is not doubled.
std::string JoinPath(std::string_view a, std::string_view b);
// The last part of a path.
std::string_view BaseName(std::string_view path);

// The directory that a path lies in: "/a" of "/a/b/", "." of "a", "/" of "/".
std::string ParentOf(const std::string& path);

// Is `relative` a path that stays inside the directory it is joined to: not empty, not absolute, no
// "." or ".." or empty part, no NUL?
bool IsInsidePath(std::string_view relative);

Result<bool> Exists(FileSystem& files, const std::string& path);

// All of `into`; kCorrupt "is truncated" with expected and actual sizes where the file ends before.
Status ReadExactly(File& file, MutableByteSpan into, std::uint64_t offset);

// The whole file as text; kLimitExceeded if it is larger than `limit` bytes.
Result<std::string> ReadText(FileSystem& files, const std::string& path, std::uint64_t limit);

// Text of a small file of the kernel (proc, sys), whose size is not known before, without the line's
// end; empty if it cannot be read.
std::string ReadKernelText(const std::string& path);

// As ReadText; nothing if there is no such file.
Result<std::optional<std::string>> ReadTextIfThere(FileSystem& files, const std::string& path,
                                                   std::uint64_t limit);

// Copies a range of one file to a place in another, in pieces of 1 MiB. kCorrupt where the first
// ends before.
Status CopyRange(File& from, std::uint64_t from_offset, File& to, std::uint64_t to_offset,
                 std::uint64_t bytes);

// Makes the directory and its parents; with `durable` their names are on the device when this
// returns.
Status MakeDirectoriesDurably(FileSystem& files, const std::string& path, bool durable);

// Writes aside, syncs if `durable`, and renames over `path`: readers see the old or the new
// content, never a mix.
Status WriteTextAtomically(FileSystem& files, const std::string& path, std::string_view text,
                           bool durable);

}  // namespace syncline::base
