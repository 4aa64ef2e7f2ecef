#include "base/arena.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace syncline::base {

Result<Arena> Arena::Create(const std::string& name, std::uint64_t bytes) {
  SYNCLINE_ASSIGN(Arena arena, CreateEmpty(name, bytes));
  SYNCLINE_TRY(arena.Reserve(0, arena.size_));
  return arena;
}

// Reserved, not only sized: memory that is not there is an error here and not a signal later.
Status Arena::Reserve(std::uint64_t offset, std::uint64_t bytes) {
  const int error =
      posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (error == 0) return {};
  return FailErrno(error, fmt::format("{}: reserving {}", what_, HumanBytes(bytes)));
}

void Arena::Release(std::uint64_t offset, std::uint64_t bytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = (offset + page - 1) / page * page;
  // Nothing else lies behind the end of the arena.
  const std::uint64_t last = offset + bytes == size_ ? size_ + page - 1 : offset + bytes;
  const std::uint64_t end = last / page * page;
  if (end <= begin) return;
  // What fails keeps its memory.
  static_cast<void>(fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(begin), static_cast<off_t>(end - begin)));
}

Result<Arena> Arena::CreateEmpty(const std::string& name, std::uint64_t bytes) {
  Arena arena;
  arena.what_ = fmt::format("{} of {}", name, HumanBytes(bytes));
  const std::string& what = arena.what_;
  arena.descriptor_ = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (arena.descriptor_ < 0) return FailErrno(errno, what);
  const std::uint64_t size = std::max<std::uint64_t>(bytes, 1);
  if (ftruncate(arena.descriptor_, static_cast<off_t>(size)) != 0) {
    return FailErrno(errno, what);
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, arena.descriptor_, 0);
  if (data == MAP_FAILED) return FailErrno(errno, what);
  arena.data_ = static_cast<std::byte*>(data);
  arena.size_ = size;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      what_(std::move(other.what_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(what_, other.what_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace syncline::base
