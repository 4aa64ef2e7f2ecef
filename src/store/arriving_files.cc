#include "store/arriving_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/read_only_file.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileInfo;
using base::MutableByteSpan;
using base::Result;
using base::Status;

constexpr std::string_view kWhyReadOnly = "what is being fetched is only read";

std::unexpected<base::Error> ReadOnly(const std::string& path) {
  return base::FailReadOnly(path, kWhyReadOnly);
}

// The local file is opened when the first bytes are there. It stays the same one to the end.
class ArrivingFile final : public base::ReadOnlyFile {
 public:
  ArrivingFile(Fetch& fetch, std::size_t number, std::string path)
      : ReadOnlyFile(std::move(path), kWhyReadOnly), fetch_(fetch), number_(number) {}

  Result<FileInfo> Stat() override {
    return FileInfo{.kind = FileInfo::Kind::kFile, .size = fetch_.FileBytes(number_)};
  }
  Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) override {
    const std::uint64_t size = fetch_.FileBytes(number_);
    if (offset >= size) return std::size_t{0};
    into = into.first(std::min<std::uint64_t>(into.size(), size - offset));
    SYNCLINE_TRY(fetch_.Await(number_, offset, into.size()));
    SYNCLINE_ASSIGN(base::File * content, Content());
    return content->ReadAt(into, offset);
  }
  // A file that begins anew is cut short, and touching a page that is gone ends the process.
  Result<base::Mapping> Map(bool) override {
    return Fail(Code::kIncompatible, fmt::format("{} cannot be mapped yet", path()));
  }

 private:
  Result<base::File*> Content() {
    const std::scoped_lock lock(mutex_);
    if (content_ == nullptr) {
      SYNCLINE_ASSIGN(content_, fetch_.OpenContent(number_));
    }
    return content_.get();
  }

  Fetch& fetch_;
  const std::size_t number_;
  std::mutex mutex_;
  std::unique_ptr<base::File> content_;  // made under mutex_, once
};

}  // namespace

Result<std::unique_ptr<base::File>> ArrivingFiles::Open(const std::string& path,
                                                        base::OpenMode mode) {
  const std::optional<std::size_t> number = fetch_.Find(path);
  if (!number) return files_.Open(path, mode);
  if (mode != base::OpenMode::kRead) return ReadOnly(path);
  return std::make_unique<ArrivingFile>(fetch_, *number, path);
}

Result<FileInfo> ArrivingFiles::Stat(const std::string& path) {
  const std::optional<std::size_t> number = fetch_.Find(path);
  if (!number) return files_.Stat(path);
  return FileInfo{.kind = FileInfo::Kind::kFile, .size = fetch_.FileBytes(*number)};
}

Result<std::vector<std::string>> ArrivingFiles::List(const std::string& directory) {
  return files_.List(directory);
}
Status ArrivingFiles::MakeDirectories(const std::string& path) {
  return files_.MakeDirectories(path);
}
Status ArrivingFiles::Rename(const std::string& from, const std::string& to) {
  if (fetch_.Find(from) || fetch_.Find(to)) return ReadOnly(to);
  return files_.Rename(from, to);
}
Status ArrivingFiles::Remove(const std::string& path) {
  if (fetch_.Find(path)) return ReadOnly(path);
  return files_.Remove(path);
}
Status ArrivingFiles::RemoveAll(const std::string& path) {
  if (fetch_.Find(path)) return ReadOnly(path);
  return files_.RemoveAll(path);
}
Status ArrivingFiles::SyncDirectory(const std::string& path) { return files_.SyncDirectory(path); }
Result<std::unique_ptr<base::FileLock>> ArrivingFiles::Lock(const std::string& path,
                                                            base::LockMode mode, bool wait) {
  return files_.Lock(path, mode, wait);
}
Result<std::uint64_t> ArrivingFiles::FreeBytes(const std::string& path) {
  return files_.FreeBytes(path);
}
Result<bool> ArrivingFiles::IsShared(const std::string& path) { return files_.IsShared(path); }

}  // namespace syncline::store
