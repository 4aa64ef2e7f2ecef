// Adding to the residual stream and its root-mean-square norm, in one pass over a row.
#pragma once

#include <cstddef>

#include "model/cpu_types.h"

namespace syncline::model {

// Where `add` is not null: x += add. Then out = weight · x / sqrt(mean(x²) + epsilon), rounded
// once. All have `width` elements.
void AddAndNormRow(float* x, const Bf16* add, const Bf16* weight, Bf16* out, std::size_t width,
                   float epsilon);
void AddAndNormRow(float* x, const float* add, const float* weight, float* out, std::size_t width,
                   float epsilon);

}  // namespace syncline::model
