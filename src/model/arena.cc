#include "model/arena.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace syncline::model {

base::Result<Arena> Arena::Create(const std::string& name, std::uint64_t bytes) {
  Arena arena;
  const std::string what = fmt::format("{} of {}", name, base::HumanBytes(bytes));
  arena.descriptor_ = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (arena.descriptor_ < 0) return base::FailErrno(errno, what);
  const std::uint64_t size = std::max<std::uint64_t>(bytes, 1);
  // Reserved, not only sized: memory that is not there is an error here and not a signal later.
  if (const int error = posix_fallocate(arena.descriptor_, 0, static_cast<off_t>(size));
      error != 0) {
    return base::FailErrno(error, what);
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, arena.descriptor_, 0);
  if (data == MAP_FAILED) return base::FailErrno(errno, what);
  arena.data_ = static_cast<std::byte*>(data);
  arena.size_ = size;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace syncline::model
