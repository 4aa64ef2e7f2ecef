// SHA-256 of files and texts (FIPS 180-4, by OpenSSL).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/thread_pool.h"

struct evp_md_ctx_st;  // NOLINT(readability-identifier-naming): OpenSSL's

namespace syncline::store {

// A SHA-256 that is fed piece by piece. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) = default;
  Sha256& operator=(Sha256&&) = default;
  ~Sha256();

  void Update(base::ByteSpan bytes);
  // 64 lower-case hex digits; to be called once. Empty if OpenSSL failed, which takes a lack of
  // memory.
  std::string Hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
  bool ok_ = false;
};

struct FileHash {
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hex digits
};

std::string Sha256Hex(base::ByteSpan bytes);

// Reads the file from start to end in pieces of 1 MiB. Thread-safe.
base::Result<FileHash> HashFile(base::FileSystem& files, const std::string& path,
                                const base::CancelToken* cancel);

// One file a thread; large ones start first. Results in the order of `paths`.
base::Result<std::vector<FileHash>> HashFiles(base::FileSystem& files,
                                              std::span<const std::string> paths,
                                              base::ThreadPool& pool,
                                              const base::CancelToken* cancel);

// Are these `digits` lower-case hex digits?
bool IsLowerHex(std::string_view text, std::size_t digits);

}  // namespace syncline::store
