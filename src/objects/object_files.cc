#include "objects/object_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/read_only_file.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::FileInfo;
using base::MutableByteSpan;
using base::Result;
using base::Status;

// Headers are read in small pieces: each request brings at least this much.
constexpr std::size_t kReadAheadBytes = std::size_t{64} * 1024;

constexpr std::string_view kWhyReadOnly = "the store is only read here";

std::unexpected<base::Error> ReadOnly(const std::string& path) {
  return base::FailReadOnly(path, kWhyReadOnly);
}

class ObjectFile final : public base::ReadOnlyFile {
 public:
  ObjectFile(ObjectStore& store, ObjectInfo info, const base::CancelToken* cancel)
      : ReadOnlyFile(base::JoinPath(store.url(), info.key), kWhyReadOnly),
        store_(store),
        info_(std::move(info)),
        cancel_(cancel) {}

  Result<FileInfo> Stat() override {
    return FileInfo{.kind = FileInfo::Kind::kFile, .size = info_.bytes};
  }
  Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) override {
    if (offset >= info_.bytes) return std::size_t{0};
    into = into.first(std::min<std::uint64_t>(into.size(), info_.bytes - offset));
    if (into.size() >= kReadAheadBytes) {
      SYNCLINE_TRY(store_.ReadAt(info_.key, into, offset, info_.tag, nullptr, cancel_));
      return into.size();
    }
    const std::scoped_lock lock(mutex_);
    if (offset < ahead_begin_ || offset + into.size() > ahead_begin_ + ahead_.size()) {
      ahead_.resize(std::min<std::uint64_t>(kReadAheadBytes, info_.bytes - offset));
      ahead_begin_ = offset;
      if (Status status = store_.ReadAt(info_.key, ahead_, offset, info_.tag, nullptr, cancel_);
          !status) {
        ahead_.clear();
        return std::unexpected(std::move(status).error());
      }
    }
    std::memcpy(into.data(), &ahead_[offset - ahead_begin_], into.size());
    return into.size();
  }
  Result<base::Mapping> Map(bool) override {
    return Fail(Code::kIncompatible, fmt::format("{} cannot be mapped", path()));
  }

 private:
  ObjectStore& store_;
  ObjectInfo info_;
  const base::CancelToken* cancel_;
  std::mutex mutex_;
  std::vector<std::byte> ahead_;  // guarded by mutex_
  std::uint64_t ahead_begin_ = 0;
};

}  // namespace

Result<std::unique_ptr<base::File>> ObjectFiles::Open(const std::string& path,
                                                      base::OpenMode mode) {
  if (mode != base::OpenMode::kRead) return ReadOnly(path);
  SYNCLINE_ASSIGN(ObjectInfo info, store_.Stat(path, cancel_));
  return std::make_unique<ObjectFile>(store_, std::move(info), cancel_);
}

Result<FileInfo> ObjectFiles::Stat(const std::string& path) {
  if (path.empty()) return FileInfo{.kind = FileInfo::Kind::kDirectory};
  Result<ObjectInfo> info = store_.Stat(path, cancel_);
  if (info) return FileInfo{.kind = FileInfo::Kind::kFile, .size = info->bytes};
  if (info.error().code != Code::kNotFound) return std::unexpected(std::move(info).error());
  if (!store_.can_list()) {
    const bool folder = base::BaseName(path).find('.') == std::string_view::npos;
    if (folder) return FileInfo{.kind = FileInfo::Kind::kDirectory};
    return std::unexpected(std::move(info).error());
  }
  SYNCLINE_ASSIGN(const std::vector<ObjectInfo> inside,
                  store_.List(path + "/", /*folders_only=*/false, cancel_));
  if (inside.empty()) return std::unexpected(std::move(info).error());
  return FileInfo{.kind = FileInfo::Kind::kDirectory};
}

Result<std::vector<std::string>> ObjectFiles::List(const std::string& directory) {
  const std::string prefix = directory.empty() ? "" : directory + "/";
  SYNCLINE_ASSIGN(const std::vector<ObjectInfo> inside, store_.List(prefix, false, cancel_));
  std::vector<std::string> names;
  for (const ObjectInfo& info : inside) {
    const std::string_view rest = std::string_view(info.key).substr(prefix.size());
    std::string name(rest.substr(0, rest.find('/')));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty() && !directory.empty()) {
    return Fail(Code::kNotFound,
                fmt::format("{} holds nothing", base::JoinPath(store_.url(), directory)));
  }
  return names;
}

Status ObjectFiles::MakeDirectories(const std::string& path) { return ReadOnly(path); }
Status ObjectFiles::Rename(const std::string&, const std::string& to) { return ReadOnly(to); }
Status ObjectFiles::Remove(const std::string& path) { return ReadOnly(path); }
Status ObjectFiles::RemoveAll(const std::string& path) { return ReadOnly(path); }
Status ObjectFiles::SyncDirectory(const std::string& path) { return ReadOnly(path); }
Result<std::unique_ptr<base::FileLock>> ObjectFiles::Lock(const std::string& path, base::LockMode,
                                                          bool) {
  return ReadOnly(path);
}
Result<std::uint64_t> ObjectFiles::FreeBytes(const std::string& path) { return ReadOnly(path); }
Result<bool> ObjectFiles::IsShared(const std::string&) { return true; }

}  // namespace syncline::objects
