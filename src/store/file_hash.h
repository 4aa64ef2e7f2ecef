// SHA-256 of files and texts (FIPS 180-4, by OpenSSL).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/thread_pool.h"

namespace syncline::store {

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
