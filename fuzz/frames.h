// The zstd library as the reference of everything that reads frames.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/bytes.h"

namespace syncline::fuzz {

// Content of one frame that ends where the bytes do; nothing where the library refuses it, or where
// there are more than `limit` bytes of it.
std::optional<std::vector<std::byte>> LibraryContent(base::ByteSpan frame, std::size_t limit);

}  // namespace syncline::fuzz
