#include "base/file.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

namespace syncline::base {

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

std::string JoinPath(std::string_view a, std::string_view b) {
  if (a.empty()) return std::string(b);
  return fmt::format("{}{}{}", a, a.ends_with('/') ? "" : "/", b);
}

std::string_view BaseName(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);
}

std::string ParentOf(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const std::size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool IsInsidePath(std::string_view relative) {
  if (relative.find('\0') != std::string_view::npos) return false;
  while (true) {
    const std::size_t slash = relative.find('/');
    const std::string_view part = relative.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    relative.remove_prefix(slash + 1);
  }
}

Result<bool> Exists(FileSystem& files, const std::string& path) {
  const Result<FileInfo> info = files.Stat(path);
  if (info) return true;
  if (info.error().code == Code::kNotFound) return false;
  return std::unexpected(info.error());
}

Status ReadExactly(File& file, MutableByteSpan into, std::uint64_t offset) {
  SYNCLINE_ASSIGN(const std::size_t got, file.ReadAt(into, offset));
  if (got == into.size()) return {};
  return Fail(Code::kCorrupt, fmt::format("{} is truncated: expected at least {} bytes, found {}",
                                          file.path(), offset + into.size(), offset + got));
}

Result<std::string> ReadText(FileSystem& files, const std::string& path, std::uint64_t limit) {
  SYNCLINE_ASSIGN(const auto file, files.Open(path, OpenMode::kRead));
  SYNCLINE_ASSIGN(const FileInfo info, file->Stat());
  if (info.size > limit) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{} has {} bytes, more than the limit of {}", path, info.size, limit));
  }
  std::string text(info.size, '\0');
  SYNCLINE_TRY(ReadExactly(*file, std::as_writable_bytes(std::span(text)), 0));
  return text;
}

Result<std::optional<std::string>> ReadTextIfThere(FileSystem& files, const std::string& path,
                                                   std::uint64_t limit) {
  Result<std::string> text = ReadText(files, path, limit);
  if (text) return *std::move(text);
  if (text.error().code == Code::kNotFound) return std::nullopt;
  return std::unexpected(std::move(text).error());
}

std::string ReadKernelText(const std::string& path) {
  const auto file = FileSystem::Posix().Open(path, OpenMode::kRead);
  if (!file) return {};
  std::array<std::byte, 4096> bytes;
  const auto size = (*file)->ReadAt(bytes, 0);
  if (!size) return {};
  std::string text(AsText(std::span(bytes).first(*size)));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

Status CopyRange(File& from, std::uint64_t from_offset, File& to, std::uint64_t to_offset,
                 std::uint64_t bytes) {
  constexpr std::size_t kPieceBytes = 1 << 20;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPieceBytes, bytes));
  for (std::uint64_t at = 0; at < bytes; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - at));
    SYNCLINE_TRY(ReadExactly(from, piece, from_offset + at));
    SYNCLINE_TRY(to.WriteAt(piece, to_offset + at));
  }
  return {};
}

Status MakeDirectoriesDurably(FileSystem& files, const std::string& path, bool durable) {
  std::vector<std::string> parents;  // of directories that are missing
  for (std::string at = path; durable;) {
    SYNCLINE_ASSIGN(const bool there, Exists(files, at));
    if (there) break;
    parents.push_back(ParentOf(at));
    if (parents.back() == at) break;
    at = parents.back();
  }
  SYNCLINE_TRY(files.MakeDirectories(path));
  for (const std::string& parent : parents) SYNCLINE_TRY(files.SyncDirectory(parent));
  return {};
}

Status WriteTextAtomically(FileSystem& files, const std::string& path, std::string_view text,
                           bool durable) {
  const std::string aside = path + ".tmp";
  SYNCLINE_ASSIGN(const auto file, files.Open(aside, OpenMode::kCreate));
  SYNCLINE_TRY(file->WriteAt(AsBytes(text), 0));
  if (durable) SYNCLINE_TRY(file->Sync());
  SYNCLINE_TRY(files.Rename(aside, path));
  if (!durable) return {};
  return files.SyncDirectory(ParentOf(path));
}

}  // namespace syncline::base
