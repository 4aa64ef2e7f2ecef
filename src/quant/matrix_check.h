// What every scheme asks of a matrix.
#pragma once

#include "base/error.h"
#include "quant/scheme.h"

namespace syncline::quant {

// kInvalidArgument where a dimension is zero, or the elements are so many that bytes of a slot
// could not be counted. Otherwise sizes of slots can be computed without overflow.
base::Status CheckMatrix(const Matrix& matrix);

}  // namespace syncline::quant
