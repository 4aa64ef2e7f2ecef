// For tests: a file system that passes calls on to another one, records those that change
// something, and makes chosen ones fail.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace syncline::base {

// Thread-safe. Stores through a writable mapping are not seen.
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

  // "operation path" for each call that changes something, in order, failed ones included.
  std::vector<std::string> changes() const;

  Status Ask(std::string_view operation, const std::string& path);

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
  FileSystem& inner_;
  mutable std::mutex mutex_;
  Rule rule_;
  std::vector<std::string> changes_;
};

}  // namespace syncline::base
