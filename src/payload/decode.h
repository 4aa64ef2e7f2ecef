// Decode() with a double of shared memory, for tests.
#pragma once

#include "payload/payload.h"
#include "payload/torch_tensor.h"

namespace syncline::payload {

base::Result<std::unique_ptr<Batch>> DecodeWith(base::ByteSpan message, Format format,
                                                std::uint32_t rank, const OpenMemory& open);

}  // namespace syncline::payload
