#include "serve/fingerprint.h"

#include <fmt/format.h>

#include "base/file.h"

namespace syncline::serve {
namespace {

constexpr int kMaxDepth = 8;  // links may lead in a circle

base::Status Add(base::FileSystem& files, const std::string& path, int depth, std::string& out) {
  SYNCLINE_ASSIGN(const base::FileInfo info, files.Stat(path));
  out += fmt::format("{}\n{} {} {} {} {}\n", path, info.device, info.number, info.size,
                     info.modified_ns, info.changed_ns);
  if (info.kind != base::FileInfo::Kind::kDirectory || depth == kMaxDepth) return {};
  SYNCLINE_ASSIGN(const std::vector<std::string> names, files.List(path));
  for (const std::string& name : names) {
    SYNCLINE_TRY(Add(files, base::JoinPath(path, name), depth + 1, out));
  }
  return {};
}

}  // namespace

base::Result<std::string> Fingerprint(base::FileSystem& files, const std::string& directory) {
  std::string out;
  SYNCLINE_TRY(Add(files, directory, 0, out));
  return out;
}

}  // namespace syncline::serve
