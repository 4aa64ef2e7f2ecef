#include "base/faulty_file_system.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace syncline::base {
namespace {

constexpr std::array<std::string_view, 7> kChanging = {"write",  "allocate", "truncate", "mkdir",
                                                       "rename", "remove",   "sync"};

class FaultyFile final : public File {
 public:
  FaultyFile(FaultyFileSystem& owner, std::unique_ptr<File> inner)
      : owner_(owner), inner_(std::move(inner)) {}

  const std::string& path() const override { return inner_->path(); }
  Result<FileInfo> Stat() override {
    SYNCLINE_TRY(owner_.Ask("stat", path()));
    return inner_->Stat();
  }
  Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) override {
    SYNCLINE_TRY(owner_.Ask("read", path()));
    return inner_->ReadAt(into, offset);
  }
  Status WriteAt(ByteSpan from, std::uint64_t offset) override {
    SYNCLINE_TRY(owner_.Ask("write", path()));
    return inner_->WriteAt(from, offset);
  }
  Status Allocate(std::uint64_t size) override {
    SYNCLINE_TRY(owner_.Ask("allocate", path()));
    return inner_->Allocate(size);
  }
  Status Truncate(std::uint64_t size) override {
    SYNCLINE_TRY(owner_.Ask("truncate", path()));
    return inner_->Truncate(size);
  }
  Status Sync() override {
    SYNCLINE_TRY(owner_.Ask("sync", path()));
    return inner_->Sync();
  }
  Result<Mapping> Map(bool writable) override {
    SYNCLINE_TRY(owner_.Ask("map", path()));
    return inner_->Map(writable);
  }

 private:
  FaultyFileSystem& owner_;
  std::unique_ptr<File> inner_;
};

}  // namespace

void FaultyFileSystem::SetRule(Rule rule) {
  const std::scoped_lock lock(mutex_);
  rule_ = std::move(rule);
}

void FaultyFileSystem::FailNth(std::string operation, std::string part, std::size_t n,
                               Error error) {
  SetRule(
      [operation = std::move(operation), part = std::move(part), n, error = std::move(error),
       seen = std::size_t{0}](std::string_view asked, const std::string& path) mutable -> Status {
        if (asked != operation || path.find(part) == std::string::npos || seen++ != n) return {};
        return Fail(error.code, fmt::format("{} ({} {})", error.message, asked, path));
      });
}

std::vector<std::string> FaultyFileSystem::changes() const {
  const std::scoped_lock lock(mutex_);
  return changes_;
}

Status FaultyFileSystem::Ask(std::string_view operation, const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (std::find(kChanging.begin(), kChanging.end(), operation) != kChanging.end()) {
    changes_.push_back(fmt::format("{} {}", operation, path));
  }
  if (!rule_) return {};
  return rule_(operation, path);
}

Result<std::unique_ptr<File>> FaultyFileSystem::Open(const std::string& path, OpenMode mode) {
  SYNCLINE_TRY(Ask("open", path));
  SYNCLINE_ASSIGN(auto file, inner_.Open(path, mode));
  return std::make_unique<FaultyFile>(*this, std::move(file));
}
Result<FileInfo> FaultyFileSystem::Stat(const std::string& path) {
  SYNCLINE_TRY(Ask("stat", path));
  return inner_.Stat(path);
}
Result<std::vector<std::string>> FaultyFileSystem::List(const std::string& directory) {
  SYNCLINE_TRY(Ask("list", directory));
  return inner_.List(directory);
}
Status FaultyFileSystem::MakeDirectories(const std::string& path) {
  SYNCLINE_TRY(Ask("mkdir", path));
  return inner_.MakeDirectories(path);
}
Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  SYNCLINE_TRY(Ask("rename", to));
  return inner_.Rename(from, to);
}
Status FaultyFileSystem::Remove(const std::string& path) {
  SYNCLINE_TRY(Ask("remove", path));
  return inner_.Remove(path);
}
Status FaultyFileSystem::RemoveAll(const std::string& path) {
  SYNCLINE_TRY(Ask("remove", path));
  return inner_.RemoveAll(path);
}
Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  SYNCLINE_TRY(Ask("sync_directory", path));
  return inner_.SyncDirectory(path);
}
Result<std::unique_ptr<FileLock>> FaultyFileSystem::Lock(const std::string& path, LockMode mode,
                                                         bool wait) {
  SYNCLINE_TRY(Ask("lock", path));
  return inner_.Lock(path, mode, wait);
}

}  // namespace syncline::base
