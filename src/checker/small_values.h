// The values of elements of the floating-point types of at most 8 bits: F4, those of F6 and F8.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace syncline::checker {

// Of an element's bits, the lowest of the byte; NaN of other types. The types of 4 and 6 bits are
// those of the OCP Microscaling formats (E2M1, E2M3, E3M2), without NaN and infinity; of FNUZ the
// only NaN has the bits of negative zero; E8M0 is 2^(bits - 127), and NaN for 255.
float SmallValue(tensor::Dtype dtype, std::uint8_t bits);

}  // namespace syncline::checker
