// Files in memory, for measurements of the work that ends in files without the work of the kernel.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file.h"

namespace syncline::bench {

// Files by their paths; every directory counts as being there. Thread-safe. What cannot be had of
// memory alone (mappings, locks, trees) fails with kInternal.
class MemoryFiles final : public base::FileSystem {
 public:
  // Removes all files; their memory is kept for later ones, so that its pages stay warm. No file
  // may be open.
  void Clear();
  std::uint64_t total_bytes() const;

  base::Result<std::unique_ptr<base::File>> Open(const std::string& path,
                                                 base::OpenMode mode) override;
  base::Result<base::FileInfo> Stat(const std::string& path) override;
  base::Result<std::vector<std::string>> List(const std::string& directory) override;
  base::Status MakeDirectories(const std::string& path) override;
  base::Status Rename(const std::string& from, const std::string& to) override;
  base::Status Remove(const std::string& path) override;
  base::Status RemoveAll(const std::string& path) override;
  base::Status SyncDirectory(const std::string& path) override;
  base::Result<std::unique_ptr<base::FileLock>> Lock(const std::string& path, base::LockMode mode,
                                                     bool wait) override;

 private:
  struct Content {
    std::mutex mutex;
    std::vector<std::byte> bytes;
  };
  class MemoryFile;

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Content>> files_;
  std::vector<std::shared_ptr<Content>> spare_;
};

}  // namespace syncline::bench
