// Random values in place of weights, to prove that an update writes all of them.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace syncline::checker {

// Overwrites the elements of one tensor: floats with numbers uniform in [0, 1), drawn with 24 bits
// (types of 8 bits: 16) and rounded to the type, so that 1 can come; booleans with 0 and 1; whole
// numbers, and what has 4 or 6 bits, with any bits. `bytes` are whole elements. The same seed gives
// the same bytes. One thread, about 1 GB/s or more.
void FillRandom(tensor::Dtype dtype, std::uint64_t seed, base::MutableByteSpan bytes);

}  // namespace syncline::checker
