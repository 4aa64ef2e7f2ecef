// For tests: a file system that remembers what a device would really hold, so that the power can be
// "cut": then any of the things that were not synced may be lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"

namespace syncline::base {

// Passes everything on to real files below `root` and records it; only syncs are recorded and not
// passed on. Thread-safe. Files and directories that stand below `root` when it is made count as
// synced; so does what other programs put there before their names are first used here. Paths are
// compared as text: `root` and all paths must be spelled alike, and links are not for this.
//
// The model (stricter than ext4 or xfs, as POSIX allows):
// - A write is durable when a later File::Sync of the file returned. Until then each 4 KiB page
//   of it may or may not have reached the device, independently of all others, and a size that grew
//   may be lost (the file is cut) or kept (missing pages read as zeros).
// - A name that was made, renamed or removed is durable when SyncDirectory of its directory
//   returned. Until then the names of one directory are lost from some point on: a random prefix of
//   the changes since the last sync of that directory survives. A rename within a directory is one
//   change; from one directory to another it is durable when the target is synced, and if it is
//   lost the old name is back.
// - Removing a file loses nothing until the removal is durable: a name that comes back has its
//   durable content.
// A writable mapping is refused: its stores could not be seen.
class PowerLossFileSystem final : public FileSystem {
 public:
  PowerLossFileSystem(FileSystem& inner, std::string root);
  ~PowerLossFileSystem() override;

  // Cuts the power: changes the real files to what a device could hold, chosen by `seed`; all open
  // files and locks of this object fail from then on with kIo. Nothing else may be running. Then
  // the object is of no further use: make a new one for life after the reboot.
  Status CutPower(std::uint64_t seed);

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
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace syncline::base
