// Tensors that are announced in words before their bytes come another way.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "payload/payload.h"

namespace syncline::payload {

// The tensors of three lists of equal length: names, types as torch writes them without "torch."
// ("bfloat16"), and whole shapes. Their `bytes` are empty. kInvalidArgument names the tensor and what is
// wrong: lists of different lengths, an unknown type, a shape that no memory could hold.
base::Result<std::vector<NamedTensor>> AnnouncedTensors(
    const std::vector<std::string>& names, const std::vector<std::string>& dtypes,
    const std::vector<std::vector<std::uint64_t>>& shapes);

// Bytes of each, and of all. Of tensors that AnnouncedTensors made.
std::vector<std::uint64_t> ByteCounts(std::span<const NamedTensor> announced);
std::uint64_t TotalBytes(std::span<const NamedTensor> announced);

// What came for them: one after the other in `memory`, without gaps. The batch keeps `owner`.
std::unique_ptr<Batch> MakeBatch(std::vector<NamedTensor> announced, base::ByteSpan memory,
                                 std::shared_ptr<const void> owner);

}  // namespace syncline::payload
