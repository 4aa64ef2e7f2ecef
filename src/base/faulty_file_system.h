// For tests: a file system that passes calls on to another one, records those that change
// something, and makes chosen ones fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace syncline::base {

// Thread-safe. Loads and stores through a mapping are not seen.
class FaultyFileSystem final : public FileSystem {
 public:
  // Asked before each operation ("open", "read", "write", "allocate", "truncate", "sync", "map",
  // "stat", "list", "mkdir", "rename", "remove", "sync_directory", "lock") with the path that it
  // touches; an error returned here is what the caller gets.
  using Rule = std::function<Status(std::string_view operation, const std::string& path)>;

  explicit FaultyFileSystem(FileSystem& inner) : inner_(inner) {}

  void SetRule(Rule rule);
  // Fails the n-th (from 0) operation of that name whose path contains `part`, once.
  void FailNth(std::string operation, std::string part, std::size_t n, Error error);

  // Called after each read that went well with what was read; may alter the bytes, and returns how
  // many of them the caller gets: fewer than were read is a short read, which a caller must take
  // for the end of the file.
  using ReadRule = std::function<std::size_t(const std::string& path, std::uint64_t offset,
                                             MutableByteSpan bytes)>;
  void SetReadRule(ReadRule rule);
  // The n-th (from 0) read of a path that contains `part` gives at most `bytes`, once.
  void ShortReadNth(std::string part, std::size_t n, std::size_t bytes);
  // The n-th (from 0) write to a path that contains `part` writes at most `bytes` and then fails,
  // once.
  void ShortWriteNth(std::string part, std::size_t n, std::size_t bytes, Error error);

  // As if the process were killed at the n-th operation (from 0, of all that were ever made here):
  // that one and all after it fail with kIo and change nothing, except that a write which is the
  // n-th has written its first `written` bytes. What was done before stays done.
  void KillAt(std::uint64_t n, std::size_t written = 0);
  bool killed() const;
  // Operations that were asked for, failed ones included.
  std::uint64_t operation_count() const;

  // "operation path" for each call that changes something, in order, failed ones included.
  std::vector<std::string> changes() const;

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status MakeDirectories(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Remove(const std::string& path) override;
  Status RemoveAll(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path, LockMode mode,
                                         bool wait) override;

 private:
  class FaultyFile;
  struct ShortWrite {
    std::string part;
    std::size_t left = 0;  // writes until it happens
    std::size_t bytes = 0;
    Error error;
  };

  // Counts the operation; what rules say to it.
  Status Ask(std::string_view operation, const std::string& path);
  // As Ask; if it fails, `written` bytes are to be written all the same.
  Status AskWrite(const std::string& path, std::size_t& written);
  Status AskLocked(std::string_view operation, const std::string& path);
  std::size_t AfterRead(const std::string& path, std::uint64_t offset, MutableByteSpan bytes);

  FileSystem& inner_;
  mutable std::mutex mutex_;  // guards all below
  Rule rule_;
  ReadRule read_rule_;
  std::optional<ShortWrite> short_write_;
  std::uint64_t operations_ = 0;
  std::uint64_t kill_at_ = std::numeric_limits<std::uint64_t>::max();
  std::size_t kill_written_ = 0;
  std::vector<std::string> changes_;
};

}  // namespace syncline::base
