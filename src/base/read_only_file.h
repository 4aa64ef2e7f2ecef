// A file that can only be read, for file systems over something that is not a file.
#pragma once

#include <string>
#include <utility>

#include "base/file.h"

namespace syncline::base {

// Whatever would change the file is kPermissionDenied: "<path>: <why>".
inline std::unexpected<Error> FailReadOnly(const std::string& path, std::string_view why) {
  return Fail(Code::kPermissionDenied, path + ": " + std::string(why));
}

class ReadOnlyFile : public File {
 public:
  ReadOnlyFile(std::string path, std::string_view why) : path_(std::move(path)), why_(why) {}

  const std::string& path() const final { return path_; }
  Status WriteAt(ByteSpan, std::uint64_t) final { return FailReadOnly(path_, why_); }
  Status Allocate(std::uint64_t) final { return FailReadOnly(path_, why_); }
  Status Truncate(std::uint64_t) final { return FailReadOnly(path_, why_); }
  Status Sync() final { return FailReadOnly(path_, why_); }

 private:
  std::string path_;
  std::string_view why_;  // a literal
};

}  // namespace syncline::base
