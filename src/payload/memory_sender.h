// For tests: shared memory as a sender with torch makes it, a count, 60 bytes more, the data.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

namespace syncline::payload {

class MemorySender {
 public:
  MemorySender(std::int32_t count, std::string_view data)
      : name_("/torch_" + std::to_string(::getpid()) + "_4294967295_" + std::to_string(next_++)) {
    const int file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_GE(file, 0);
    std::string content(64, '\0');
    std::memcpy(content.data(), &count, sizeof(count));
    content += data;
    EXPECT_EQ(::write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    ::close(file);
  }
  MemorySender(const MemorySender&) = delete;
  MemorySender& operator=(const MemorySender&) = delete;
  ~MemorySender() { ::shm_unlink(name_.c_str()); }

  const std::string& name() const { return name_; }
  bool IsThere() const { return std::filesystem::exists("/dev/shm" + name_); }
  std::int32_t count() const {
    const int file = ::shm_open(name_.c_str(), O_RDONLY, 0);
    std::int32_t count = -99;
    EXPECT_EQ(::pread(file, &count, sizeof(count), 0), static_cast<ssize_t>(sizeof(count)));
    ::close(file);
    return count;
  }
  // Over the data.
  void Write(std::size_t offset, std::string_view data) const {
    const int file = ::shm_open(name_.c_str(), O_RDWR, 0);
    EXPECT_EQ(::pwrite(file, data.data(), data.size(), static_cast<off_t>(64 + offset)),
              static_cast<ssize_t>(data.size()));
    ::close(file);
  }

 private:
  static inline int next_ = 0;
  std::string name_;
};

}  // namespace syncline::payload
