#include "memory_files.h"

#include <algorithm>
#include <cstring>

namespace syncline::bench {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::FileInfo;
using base::OpenMode;
using base::Result;
using base::Status;

class MemoryFiles::MemoryFile final : public base::File {
 public:
  MemoryFile(std::string path, std::shared_ptr<Content> content)
      : path_(std::move(path)), content_(std::move(content)) {}

  const std::string& path() const override { return path_; }

  Result<FileInfo> Stat() override {
    const std::scoped_lock lock(content_->mutex);
    return FileInfo{.kind = FileInfo::Kind::kFile, .size = content_->bytes.size()};
  }

  Result<std::size_t> ReadAt(base::MutableByteSpan into, std::uint64_t offset) override {
    const std::scoped_lock lock(content_->mutex);
    const std::vector<std::byte>& bytes = content_->bytes;
    if (offset >= bytes.size()) return 0;
    const std::size_t size = std::min<std::uint64_t>(into.size(), bytes.size() - offset);
    std::memcpy(into.data(), bytes.data() + offset, size);
    return size;
  }

  Status WriteAt(ByteSpan from, std::uint64_t offset) override {
    const std::scoped_lock lock(content_->mutex);
    std::vector<std::byte>& bytes = content_->bytes;
    if (offset == bytes.size()) {
      bytes.insert(bytes.end(), from.begin(), from.end());
      return {};
    }
    if (bytes.size() < offset + from.size()) bytes.resize(offset + from.size());
    std::ranges::copy(from, bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  Status Allocate(std::uint64_t size) override { return Truncate(size); }

  Status Truncate(std::uint64_t size) override {
    const std::scoped_lock lock(content_->mutex);
    content_->bytes.resize(size);
    return {};
  }

  Status Sync() override { return {}; }
  Result<base::Mapping> Map(bool) override {
    return Fail(Code::kInternal, path_ + ": files in memory are not mapped");
  }

 private:
  std::string path_;
  std::shared_ptr<Content> content_;
};

void MemoryFiles::Clear() {
  const std::scoped_lock lock(mutex_);
  for (auto& [path, content] : files_) {
    content->bytes.clear();
    spare_.push_back(std::move(content));
  }
  files_.clear();
}

std::uint64_t MemoryFiles::total_bytes() const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t total = 0;
  for (const auto& [path, content] : files_) total += content->bytes.size();
  return total;
}

Result<std::unique_ptr<base::File>> MemoryFiles::Open(const std::string& path, OpenMode mode) {
  const std::scoped_lock lock(mutex_);
  const bool there = files_.contains(path);
  const bool must_exist = mode == OpenMode::kRead || mode == OpenMode::kReadWrite;
  if (must_exist && !there) return Fail(Code::kNotFound, path + ": no such file in memory");
  if (!must_exist && mode != OpenMode::kCreate && there) {
    return Fail(Code::kAlreadyExists, path + ": is there in memory already");
  }
  std::shared_ptr<Content>& content = files_[path];
  if (content == nullptr && !spare_.empty()) {
    // The largest, so that one file that grows finds its memory again.
    const auto largest = std::ranges::max_element(
        spare_, {}, [](const auto& spare) { return spare->bytes.capacity(); });
    std::swap(*largest, spare_.back());
    content = std::move(spare_.back());
    spare_.pop_back();
  }
  if (content == nullptr) content = std::make_shared<Content>();
  if (mode == OpenMode::kCreate) content->bytes.clear();
  return std::make_unique<MemoryFile>(path, content);
}

Result<FileInfo> MemoryFiles::Stat(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end()) return Fail(Code::kNotFound, path + ": no such file in memory");
  return FileInfo{.kind = FileInfo::Kind::kFile, .size = found->second->bytes.size()};
}

Result<std::vector<std::string>> MemoryFiles::List(const std::string& directory) {
  const std::scoped_lock lock(mutex_);
  const std::string prefix = directory + "/";
  std::vector<std::string> names;
  for (const auto& [path, content] : files_) {
    if (path.starts_with(prefix)) names.push_back(path.substr(prefix.size()));
  }
  return names;
}

Status MemoryFiles::MakeDirectories(const std::string&) { return {}; }

Status MemoryFiles::Rename(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(from);
  if (found == files_.end()) return Fail(Code::kNotFound, from + ": no such file in memory");
  std::shared_ptr<Content> content = std::move(found->second);
  files_.erase(found);
  files_[to] = std::move(content);
  return {};
}

Status MemoryFiles::Remove(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (files_.erase(path) == 0) return Fail(Code::kNotFound, path + ": no such file in memory");
  return {};
}

Status MemoryFiles::RemoveAll(const std::string& path) {
  return Fail(Code::kInternal, path + ": trees in memory are removed by Clear alone");
}

Status MemoryFiles::SyncDirectory(const std::string&) { return {}; }

Result<std::unique_ptr<base::FileLock>> MemoryFiles::Lock(const std::string& path, base::LockMode,
                                                          bool) {
  return Fail(Code::kInternal, path + ": files in memory are not locked");
}

}  // namespace syncline::bench
