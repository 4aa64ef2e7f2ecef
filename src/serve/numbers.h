// Tensors as JSON numbers.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "update/weights.h"

namespace syncline::serve {

float Bf16ToFloat(std::uint16_t bits);
float F16ToFloat(std::uint16_t bits);

// The first `rows` entries along the first dimension, nested as the shape is; a scalar as a list of
// one. Every number is the value exactly; NaN and infinity are null. kIncompatible for a type other
// than F32, F16 and BF16, kLimitExceeded for more than `limit` numbers, kCorrupt where the bytes do
// not fit the shape.
base::Result<std::string> NumbersText(const update::ExportedTensor& tensor, std::uint64_t rows,
                                      std::uint64_t limit);

}  // namespace syncline::serve
