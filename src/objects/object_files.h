// A read-only base::FileSystem over an object store, so that whatever reads checkpoints and
// versions from directories reads them from HTTP and S3 too.
#pragma once

#include <memory>
#include <string>

#include "base/file.h"
#include "objects/object_store.h"

namespace syncline::objects {

// A path is a key of the store; "" is its root. Every call is a request, so it is for headers and
// parts of files; whole files are better fetched. Thread-safe. Calls that would change something are
// kPermissionDenied; List is kIncompatible where the store cannot be asked what it holds. Stat of a
// folder says kDirectory if something lies in it; where that cannot be asked, of any path whose last
// part has no dot.
class ObjectFiles final : public base::FileSystem {
 public:
  // `cancel` (may be null) ends every request; both outlive this object.
  ObjectFiles(ObjectStore& store, const base::CancelToken* cancel)
      : store_(store), cancel_(cancel) {}

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
  ObjectStore& store_;
  const base::CancelToken* cancel_;
};

}  // namespace syncline::objects
