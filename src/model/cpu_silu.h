// The gate of a SwiGLU feed-forward layer.
#pragma once

#include <cstddef>

#include "model/cpu_types.h"

namespace syncline::model {

// out = silu(gate) · up with silu(x) = x / (1 + exp(-x)), rounded before and after the product. All
// have `width` elements.
void SiluAndMultiplyRow(const Bf16* gate, const Bf16* up, Bf16* out, std::size_t width);
void SiluAndMultiplyRow(const float* gate, const float* up, float* out, std::size_t width);

}  // namespace syncline::model
