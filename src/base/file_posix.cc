#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"

namespace syncline::base {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

FileInfo ToInfo(const struct stat& st) {
  FileInfo info;
  info.kind = S_ISREG(st.st_mode)   ? FileInfo::Kind::kFile
              : S_ISDIR(st.st_mode) ? FileInfo::Kind::kDirectory
                                    : FileInfo::Kind::kOther;
  info.size = static_cast<std::uint64_t>(st.st_size);
  info.modified_ns = st.st_mtim.tv_sec * 1'000'000'000LL + st.st_mtim.tv_nsec;
  info.changed_ns = st.st_ctim.tv_sec * 1'000'000'000LL + st.st_ctim.tv_nsec;
  info.number = st.st_ino;
  info.device = st.st_dev;
  return info;
}

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::string& path() const override { return path_; }

  Result<FileInfo> Stat() override {
    struct stat st = {};
    if (fstat(fd_.get(), &st) != 0) return FailErrno(errno, "cannot stat " + path_);
    return ToInfo(st);
  }

  Result<std::size_t> ReadAt(MutableByteSpan into, std::uint64_t offset) override {
    std::size_t done = 0;
    while (done < into.size()) {
      const ssize_t got = pread(fd_.get(), into.data() + done, into.size() - done,
                                static_cast<off_t>(offset + done));
      if (got == 0) break;
      if (got < 0) {
        if (errno == EINTR) continue;
        return FailErrno(errno, fmt::format("cannot read {} at {}", path_, offset + done));
      }
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  Status WriteAt(ByteSpan from, std::uint64_t offset) override {
    while (!from.empty()) {
      const ssize_t put = pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset));
      if (put < 0) {
        if (errno == EINTR) continue;
        return FailErrno(errno, fmt::format("cannot write {} at {}", path_, offset));
      }
      from = from.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  Status Allocate(std::uint64_t size) override {
    if (size > 0) {
      int error = 0;
      do {
        error = posix_fallocate(fd_.get(), 0, static_cast<off_t>(size));
      } while (error == EINTR);
      if (error != 0) {
        return FailErrno(error, fmt::format("cannot reserve {} bytes for {}", size, path_));
      }
    }
    return Truncate(size);
  }

  Status Truncate(std::uint64_t size) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
      return FailErrno(errno, fmt::format("cannot set the size of {} to {}", path_, size));
    }
    return {};
  }

  Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return FailErrno(errno, "cannot sync " + path_);
    return {};
  }

  Result<Mapping> Map(bool writable) override {
    SYNCLINE_ASSIGN(const FileInfo info, Stat());
    if (info.size == 0) return Mapping();
    void* data = mmap(nullptr, info.size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                      fd_.get(), 0);
    if (data == MAP_FAILED) return FailErrno(errno, "cannot map " + path_);
    return Mapping(static_cast<std::byte*>(data), info.size);
  }

 private:
  std::string path_;
  Descriptor fd_;
};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  Descriptor fd_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::kRead:
        flags |= O_RDONLY;
        break;
      case OpenMode::kReadWrite:
        flags |= O_RDWR;
        break;
      case OpenMode::kCreate:
        flags |= O_RDWR | O_CREAT | O_TRUNC;
        break;
      case OpenMode::kCreateNew:
      case OpenMode::kCreatePrivate:
        flags |= O_RDWR | O_CREAT | O_EXCL;
        break;
    }
    Descriptor fd(open(path.c_str(), flags, mode == OpenMode::kCreatePrivate ? 0600 : 0644));
    if (!fd.ok()) return FailErrno(errno, "cannot open " + path);
    struct stat st = {};
    if (fstat(fd.get(), &st) == 0 && S_ISDIR(st.st_mode)) {
      return Fail(Code::kInvalidArgument, "cannot open " + path + ": is a directory");
    }
    return std::make_unique<PosixFile>(path, std::move(fd));
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat st = {};
    if (stat(path.c_str(), &st) != 0) return FailErrno(errno, "cannot stat " + path);
    return ToInfo(st);
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    DIR* stream = opendir(directory.c_str());
    if (stream == nullptr) return FailErrno(errno, "cannot list " + directory);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(stream)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int error = errno;
    closedir(stream);
    if (error != 0) return FailErrno(error, "cannot list " + directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status MakeDirectories(const std::string& path) override {
    for (std::size_t end = path.find('/', 1); true; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) {
        return FailErrno(errno, "cannot make directory " + part);
      }
      if (end == std::string::npos) break;
    }
    SYNCLINE_ASSIGN(const FileInfo info, Stat(path));
    if (info.kind == FileInfo::Kind::kDirectory) return {};
    return Fail(Code::kAlreadyExists, path + " is there and is not a directory");
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return {};
    return FailErrno(errno, fmt::format("cannot rename {} to {}", from, to));
  }

  Status Remove(const std::string& path) override {
    if (remove(path.c_str()) == 0) return {};
    return FailErrno(errno, "cannot remove " + path);
  }

  Status RemoveAll(const std::string& path) override {
    struct stat st = {};
    if (lstat(path.c_str(), &st) != 0) {
      if (errno == ENOENT) return {};
      return FailErrno(errno, "cannot stat " + path);
    }
    if (S_ISDIR(st.st_mode)) {
      SYNCLINE_ASSIGN(const std::vector<std::string> names, List(path));
      for (const std::string& name : names) SYNCLINE_TRY(RemoveAll(JoinPath(path, name)));
    }
    return Remove(path);
  }

  Status SyncDirectory(const std::string& path) override {
    const Descriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.ok()) return FailErrno(errno, "cannot open directory " + path);
    if (fsync(fd.get()) != 0) return FailErrno(errno, "cannot sync directory " + path);
    return {};
  }

  Result<std::unique_ptr<FileLock>> Lock(const std::string& path, LockMode mode,
                                         bool wait) override {
    Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!fd.ok()) return FailErrno(errno, "cannot open " + path);
    const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | (wait ? 0 : LOCK_NB);
    while (flock(fd.get(), operation) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) {
        return Fail(Code::kLocked, path + " is locked by another process");
      }
      return FailErrno(errno, "cannot lock " + path);
    }
    return std::make_unique<PosixLock>(std::move(fd));
  }
};

}  // namespace

Result<std::uint64_t> FileSystem::FreeBytes(const std::string& path) {
  struct statvfs st = {};
  if (statvfs(path.c_str(), &st) != 0)
    return FailErrno(errno, "cannot ask for the space at " + path);
  return std::uint64_t{st.f_bavail} * st.f_frsize;
}

Result<bool> FileSystem::IsShared(const std::string& path) {
  struct stat st = {};
  if (lstat(path.c_str(), &st) != 0) return FailErrno(errno, "cannot stat " + path);
  return S_ISLNK(st.st_mode) || (S_ISREG(st.st_mode) && st.st_nlink > 1);
}

FileSystem& FileSystem::Posix() {
  static PosixFileSystem files;
  return files;
}

}  // namespace syncline::base
