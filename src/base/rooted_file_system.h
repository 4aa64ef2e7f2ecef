// A file system that ends at the directories that it was given.
//
// Every call is refused (kPermissionDenied, naming the path, where it leads and the roots) before
// anything is opened, if the path leads outside of all roots once its links are followed. So a link
// inside a root to something else inside a root is fine, and one that leaves them is not, wherever
// in a checkpoint or store it lies.
//
// It guards against who names paths, not against who can change the directories meanwhile: a link
// could be put in place between the check and the call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"

namespace syncline::base {

// Where a path leads: absolute, without links, "." and "..". What is not there is taken as it is
// written. kInvalidArgument for links in a circle; an errno's code for what cannot be looked at.
Result<std::string> FollowLinks(const std::string& path);

// Thread-safe.
class RootedFileSystem final : public FileSystem {
 public:
  struct Rules {
    std::vector<std::string> roots;
    // May be read too, and all below them, wherever their links lead: what the operator has chosen.
    std::vector<std::string> readable;
  };

  // `inner` must outlive it. kInvalidArgument for a root that is no directory.
  static Result<std::unique_ptr<RootedFileSystem>> Make(FileSystem& inner, Rules rules);

  // May the path be read, as far as the rules go?
  Status Check(const std::string& path) const { return CheckRead(path); }

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
  Result<std::uint64_t> FreeBytes(const std::string& path) override;
  Result<bool> IsShared(const std::string& path) override;

 private:
  RootedFileSystem(FileSystem& inner, Rules rules) : inner_(inner), rules_(std::move(rules)) {}

  Status CheckRead(const std::string& path) const;
  Status CheckWrite(const std::string& path) const;
  Status CheckName(const std::string& path) const;  // itself, not where it leads

  FileSystem& inner_;
  const Rules rules_;  // roots without links, readable paths as they are written
};

}  // namespace syncline::base
