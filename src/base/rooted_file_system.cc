#include "base/rooted_file_system.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace syncline::base {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel

// The parts of a path, the first one last.
std::vector<std::string> PartsBackwards(const fs::path& path) {
  std::vector<std::string> parts(path.begin(), path.end());
  std::ranges::reverse(parts);
  return parts;
}

bool IsBelow(std::string_view path, std::string_view directory) {
  if (directory == "/") return path.starts_with('/');
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

std::string Normal(const std::string& path) {
  std::string normal = fs::absolute(path).lexically_normal().string();
  while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

Result<std::string> FollowLinksOf(const std::string& path) {
  std::vector<std::string> left = PartsBackwards(fs::absolute(path));
  fs::path at = "/";
  int links = 0;
  while (!left.empty()) {
    const std::string part = std::move(left.back());
    left.pop_back();
    if (part.empty() || part == "." || part == "/") continue;
    if (part == "..") {
      at = at.parent_path();
      continue;
    }
    const fs::path next = at / part;
    std::error_code error;
    const fs::file_status status = fs::symlink_status(next, error);
    if (status.type() != fs::file_type::symlink) {
      if (error && status.type() != fs::file_type::not_found) {
        return FailErrno(error.value(), path);
      }
      at = next;
      continue;
    }
    if (++links > kMaxLinks) {
      return Fail(Code::kInvalidArgument, fmt::format("{}: too many links", path));
    }
    const fs::path target = fs::read_symlink(next, error);
    if (error) return FailErrno(error.value(), path);
    if (target.is_absolute()) at = "/";
    std::ranges::move(PartsBackwards(target), std::back_inserter(left));
  }
  return at.string();
}

}  // namespace

Result<std::string> FollowLinks(const std::string& path) {
  try {
    return FollowLinksOf(path);
  } catch (const std::exception& error) {  // no working directory, say
    return Fail(Code::kIo, fmt::format("{}: {}", path, error.what()));
  }
}

Result<std::unique_ptr<RootedFileSystem>> RootedFileSystem::Make(FileSystem& inner, Rules rules) {
  for (std::string& root : rules.roots) {
    const Result<FileInfo> info = inner.Stat(root);
    if (!info || info->kind != FileInfo::Kind::kDirectory) {
      return Fail(Code::kInvalidArgument, fmt::format("{}: expected a directory", root));
    }
    SYNCLINE_ASSIGN(root, FollowLinks(root));
  }
  for (std::string& path : rules.readable) path = Normal(path);
  return std::unique_ptr<RootedFileSystem>(new RootedFileSystem(inner, std::move(rules)));
}

Status RootedFileSystem::CheckWrite(const std::string& path) const {
  SYNCLINE_ASSIGN(const std::string target, FollowLinks(path));
  for (const std::string& root : rules_.roots) {
    if (IsBelow(target, root)) return {};
  }
  const std::string leads = target == path ? "" : fmt::format(", which leads to {},", target);
  return Fail(Code::kPermissionDenied, fmt::format("{}{} is outside of what is allowed: {}", path,
                                                   leads, fmt::join(rules_.roots, ", ")));
}

Status RootedFileSystem::CheckRead(const std::string& path) const {
  const std::string normal = Normal(path);
  for (const std::string& readable : rules_.readable) {
    if (IsBelow(normal, readable)) return {};
  }
  return CheckWrite(path);
}

Status RootedFileSystem::CheckName(const std::string& path) const {
  return CheckWrite(JoinPath(ParentOf(path), "."));
}

Result<std::unique_ptr<File>> RootedFileSystem::Open(const std::string& path, OpenMode mode) {
  SYNCLINE_TRY(mode == OpenMode::kRead ? CheckRead(path) : CheckWrite(path));
  return inner_.Open(path, mode);
}

Result<FileInfo> RootedFileSystem::Stat(const std::string& path) {
  SYNCLINE_TRY(CheckRead(path));
  return inner_.Stat(path);
}

Result<std::vector<std::string>> RootedFileSystem::List(const std::string& directory) {
  SYNCLINE_TRY(CheckRead(directory));
  return inner_.List(directory);
}

Status RootedFileSystem::MakeDirectories(const std::string& path) {
  SYNCLINE_TRY(CheckWrite(path));
  return inner_.MakeDirectories(path);
}

Status RootedFileSystem::Rename(const std::string& from, const std::string& to) {
  SYNCLINE_TRY(CheckName(from));
  SYNCLINE_TRY(CheckName(to));
  return inner_.Rename(from, to);
}

Status RootedFileSystem::Remove(const std::string& path) {
  SYNCLINE_TRY(CheckName(path));
  return inner_.Remove(path);
}

Status RootedFileSystem::RemoveAll(const std::string& path) {
  SYNCLINE_TRY(CheckName(path));
  return inner_.RemoveAll(path);
}

Status RootedFileSystem::SyncDirectory(const std::string& path) {
  SYNCLINE_TRY(CheckWrite(path));
  return inner_.SyncDirectory(path);
}

Result<std::unique_ptr<FileLock>> RootedFileSystem::Lock(const std::string& path, LockMode mode,
                                                         bool wait) {
  SYNCLINE_TRY(CheckWrite(path));
  return inner_.Lock(path, mode, wait);
}

Result<std::uint64_t> RootedFileSystem::FreeBytes(const std::string& path) {
  SYNCLINE_TRY(CheckRead(path));
  return inner_.FreeBytes(path);
}

Result<bool> RootedFileSystem::IsShared(const std::string& path) {
  SYNCLINE_TRY(CheckName(path));
  return inner_.IsShared(path);
}

}  // namespace syncline::base
