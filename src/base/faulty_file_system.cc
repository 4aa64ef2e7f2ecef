#include "base/faulty_file_system.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace syncline::base {
namespace {

constexpr std::array<std::string_view, 7> kChanging = {"write",  "allocate", "truncate", "mkdir",
                                                       "rename", "remove",   "sync"};

}  // namespace

class FaultyFileSystem::FaultyFile final : public File {
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
    SYNCLINE_ASSIGN(const std::size_t got, inner_->ReadAt(into, offset));
    return owner_.AfterRead(path(), offset, into.first(got));
  }
  Status WriteAt(ByteSpan from, std::uint64_t offset) override {
    std::size_t written = 0;
    Status asked = owner_.AskWrite(path(), written);
    if (asked) return inner_->WriteAt(from, offset);
    if (written > 0) {
      SYNCLINE_TRY(inner_->WriteAt(from.first(std::min(written, from.size())), offset));
    }
    return asked;
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

void FaultyFileSystem::SetReadRule(ReadRule rule) {
  const std::scoped_lock lock(mutex_);
  read_rule_ = std::move(rule);
}

void FaultyFileSystem::ShortReadNth(std::string part, std::size_t n, std::size_t bytes) {
  SetReadRule([part = std::move(part), n, bytes, seen = std::size_t{0}](
                  const std::string& path, std::uint64_t, MutableByteSpan read) mutable {
    if (path.find(part) == std::string::npos || seen++ != n) return read.size();
    return std::min(read.size(), bytes);
  });
}

void FaultyFileSystem::ShortWriteNth(std::string part, std::size_t n, std::size_t bytes,
                                     Error error) {
  const std::scoped_lock lock(mutex_);
  short_write_ = {std::move(part), n, bytes, std::move(error)};
}

void FaultyFileSystem::KillAt(std::uint64_t n, std::size_t written) {
  const std::scoped_lock lock(mutex_);
  kill_at_ = n;
  kill_written_ = written;
}

bool FaultyFileSystem::killed() const {
  const std::scoped_lock lock(mutex_);
  return operations_ > kill_at_;
}

std::uint64_t FaultyFileSystem::operation_count() const {
  const std::scoped_lock lock(mutex_);
  return operations_;
}

std::vector<std::string> FaultyFileSystem::changes() const {
  const std::scoped_lock lock(mutex_);
  return changes_;
}

Status FaultyFileSystem::Ask(std::string_view operation, const std::string& path) {
  const std::scoped_lock lock(mutex_);
  return AskLocked(operation, path);
}

Status FaultyFileSystem::AskLocked(std::string_view operation, const std::string& path) {
  if (operations_++ >= kill_at_) {
    return Fail(Code::kIo, fmt::format("killed before {} {}", operation, path));
  }
  if (std::find(kChanging.begin(), kChanging.end(), operation) != kChanging.end()) {
    changes_.push_back(fmt::format("{} {}", operation, path));
  }
  if (!rule_) return {};
  return rule_(operation, path);
}

Status FaultyFileSystem::AskWrite(const std::string& path, std::size_t& written) {
  const std::scoped_lock lock(mutex_);
  if (operations_ == kill_at_) written = kill_written_;
  SYNCLINE_TRY(AskLocked("write", path));
  if (!short_write_ || path.find(short_write_->part) == std::string::npos) return {};
  if (short_write_->left-- > 0) return {};
  written = short_write_->bytes;
  Error error = std::move(short_write_->error);
  short_write_ = std::nullopt;
  return Fail(error.code, fmt::format("{} (write {})", error.message, path));
}

std::size_t FaultyFileSystem::AfterRead(const std::string& path, std::uint64_t offset,
                                        MutableByteSpan bytes) {
  const std::scoped_lock lock(mutex_);
  return read_rule_ ? std::min(read_rule_(path, offset, bytes), bytes.size()) : bytes.size();
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
