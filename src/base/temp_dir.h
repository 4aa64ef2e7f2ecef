// For tests: a fresh directory that is removed at the end of the scope.
#pragma once

#include <stdlib.h>

#include <string>
#include <string_view>

#include "base/file.h"

namespace syncline::base {

class TempDir {
 public:
  // In memory, where the system has such a folder: for tests of very many files.
  static std::string MemoryFolder() {
    return FileSystem::Posix().Stat("/dev/shm") ? "/dev/shm" : "/tmp";
  }

  explicit TempDir(const std::string& parent = "/tmp") {
    std::string pattern = JoinPath(parent, "syncline_test_XXXXXX");
    path_ = mkdtemp(pattern.data()) == nullptr ? "/nonexistent" : pattern;
  }
  ~TempDir() { (void)FileSystem::Posix().RemoveAll(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace syncline::base
