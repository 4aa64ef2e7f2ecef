// Asks the system directly: base::FileInfo has neither the file number nor the time of metadata.
#include "serve/fingerprint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/file.h"

namespace syncline::serve {
namespace {

constexpr int kMaxDepth = 8;  // links may lead in a circle

base::Status Add(const std::string& path, int depth, std::string& out) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return base::FailErrno(errno, path);
  out += fmt::format("{}\n{} {} {} {}.{:09} {}.{:09}\n", path, info.st_dev, info.st_ino,
                     info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
  if (!S_ISDIR(info.st_mode) || depth == kMaxDepth) return {};
  SYNCLINE_ASSIGN(const std::vector<std::string> names, base::FileSystem::Posix().List(path));
  for (const std::string& name : names) {
    SYNCLINE_TRY(Add(base::JoinPath(path, name), depth + 1, out));
  }
  return {};
}

}  // namespace

base::Result<std::string> Fingerprint(const std::string& directory) {
  std::string out;
  SYNCLINE_TRY(Add(directory, 0, out));
  return out;
}

}  // namespace syncline::serve
