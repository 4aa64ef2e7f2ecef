// What all fuzz targets share: how they state what must hold, a file in memory, and how much memory
// a call has taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/file.h"

namespace syncline::fuzz {

// A statement of a target that did not hold. libFuzzer takes it for a crash, the replay for a
// failed test.
class Broken : public std::logic_error {
  using logic_error::logic_error;
};

inline void Must(bool holds, std::string_view statement) {
  if (!holds) throw Broken(std::string(statement));
}

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline base::ByteSpan Bytes(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// A read-only file. `claimed_bytes` is the size that Stat() gives; the content may be shorter, as
// of a file that is cut short while it is read.
class MemoryFile final : public base::File {
 public:
  MemoryFile(base::ByteSpan content, std::uint64_t claimed_bytes)
      : content_(content), claimed_bytes_(claimed_bytes) {}

  const std::string& path() const override { return path_; }
  base::Result<base::FileInfo> Stat() override {
    return base::FileInfo{.kind = base::FileInfo::Kind::kFile, .size = claimed_bytes_};
  }
  base::Result<std::size_t> ReadAt(base::MutableByteSpan into, std::uint64_t offset) override;
  base::Status WriteAt(base::ByteSpan, std::uint64_t) override { return Refuse(); }
  base::Status Allocate(std::uint64_t) override { return Refuse(); }
  base::Status Truncate(std::uint64_t) override { return Refuse(); }
  base::Status Sync() override { return Refuse(); }
  base::Result<base::Mapping> Map(bool writable) override;

 private:
  static base::Status Refuse() { return base::Fail(base::Code::kPermissionDenied, "read-only"); }

  base::ByteSpan content_;
  std::uint64_t claimed_bytes_;
  std::string path_ = "memory";
};

// The most bytes that were held through operator new (in a fuzzing build, through malloc too) at
// one time since this object was made, beside what was held before.
class MemoryWatch {
 public:
  MemoryWatch();
  std::size_t peak() const;

 private:
  std::size_t before_;
};

}  // namespace syncline::fuzz
