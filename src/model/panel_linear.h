// Matrix products with quantised weights, on CPU.
//
// The runtime layout is the only copy of the weights: a panel of rows is turned into bf16 in memory
// that stays in the second cache, and used for all rows of x before the next one. So each weight is
// read once, in its quantised size.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/weight_matrix.h"

namespace syncline::model {

// x · weightᵀ + bias, for a quantised `weight`. x: [rows, inputs], contiguous; bias: [outputs] or
// undefined. With activations in bf16 the products of rows do not depend on one another (linear.h);
// others are ATen's. Throws where x is not on CPU.
at::Tensor PanelLinear(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias);

// x · weightᵀ as fp32 into `out`, which holds rows · outputs values.
void PanelLinearToFloat(const at::Tensor& x, const WeightMatrix& weight, std::span<float> out);

}  // namespace syncline::model
