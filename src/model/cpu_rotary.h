// Rotary position embedding in place.
#pragma once

#include <cstddef>

#include "model/cpu_types.h"

namespace syncline::model {

// Rotates the pairs (i, i + head_size / 2) of each head by the angle of which cosine[i] and sine[i]
// are given; rounded once. heads: [count, head_size]; cosine, sine: [head_size / 2].
void RotateHeads(Bf16* heads, std::size_t count, std::size_t head_size, const float* cosine,
                 const float* sine);
void RotateHeads(float* heads, std::size_t count, std::size_t head_size, const float* cosine,
                 const float* sine);

}  // namespace syncline::model
