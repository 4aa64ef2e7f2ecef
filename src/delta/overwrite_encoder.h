// Makes overwrite frames (delta/encoding.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/changed_lines.h"
#include "tensor/dtype.h"

namespace syncline::delta {

struct OverwriteFrame {
  std::vector<std::byte> bytes;  // the zstd frame; empty if nothing differs
  std::uint64_t changed_elements = 0;
};

// The overwrite frame of a tensor given as its old and new image, and what differs marked. Beside
// the frame it takes a few hundred kilobytes. kLimitExceeded for a tensor above 4 GiB, whose
// positions do not fit.
base::Result<OverwriteFrame> EncodeOverwrite(base::ByteSpan old_bytes, base::ByteSpan new_bytes,
                                             tensor::Dtype dtype, ChangedLines& lines);

}  // namespace syncline::delta
