// Decode() with a double of shared memory and another limit, for tests.
#pragma once

#include "payload/payload.h"
#include "payload/torch_tensor.h"

namespace syncline::payload {

inline constexpr std::uint64_t kMayExpand = std::uint64_t{256} << 20;

// `may_expand`: bytes that views may be packed to beyond a multiple of the storages.
base::Result<std::unique_ptr<Batch>> DecodeWith(base::ByteSpan message, Format format,
                                                std::uint32_t rank, const OpenMemory& open,
                                                std::uint64_t may_expand = kMayExpand);

}  // namespace syncline::payload
