// The bytes of the weights in a file, while their memory is given back to the system.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"

namespace syncline::update {

// The file has no name once it is written, so nothing is left of it when this or the process ends.
// One thread at a time.
class WeightsBackup {
 public:
  // `directory` must exist. kNoSpace and other errors of the file system name the file; nothing is
  // left of it then. `rank` is part of its name.
  static base::Result<std::unique_ptr<WeightsBackup>> Write(base::FileSystem& files,
                                                            const std::string& directory,
                                                            std::uint32_t rank,
                                                            std::span<const base::ByteSpan> weights,
                                                            const base::CancelToken& cancel);

  // Fills spans of the sizes that were written.
  base::Status Read(std::span<const base::MutableByteSpan> weights,
                    const base::CancelToken& cancel) const;

 private:
  explicit WeightsBackup(std::unique_ptr<base::File> file) : file_(std::move(file)) {}

  std::unique_ptr<base::File> file_;
};

}  // namespace syncline::update
