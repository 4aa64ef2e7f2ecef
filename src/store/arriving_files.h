// A local directory whose files are still being fetched, as a file system.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "store/fetch.h"

namespace syncline::store {

// A file that `fetch` wants has the size that it will have, whatever has come of it; a read waits
// as Fetch::Await does. It is only read here (kPermissionDenied), and not mapped (kIncompatible).
// Everything else is what `files` says. Both must outlive it.
class ArrivingFiles final : public base::FileSystem {
 public:
  ArrivingFiles(Fetch& fetch, base::FileSystem& files) : fetch_(fetch), files_(files) {}

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
  base::Result<std::uint64_t> FreeBytes(const std::string& path) override;
  base::Result<bool> IsShared(const std::string& path) override;

 private:
  Fetch& fetch_;
  base::FileSystem& files_;
};

}  // namespace syncline::store
