// The matrix products of a transformer's layers.
//
// On CPU in bf16 they are computed by kernels that read the weights in place (cpu_linear.h), so
// that a row's result does not depend on the rows beside it; where the processor has AMX, only up
// to 32 rows. Everything else is ATen's. Both add up in fp32 and round once.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace syncline::model {

// x · weightᵀ + bias. x: [rows, inputs], weight: [outputs, inputs], bias: [outputs] or undefined.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// x · weightᵀ as fp32 into `out`, which holds rows · outputs values. The kernels do not round it to
// the type of x; ATen does.
void LinearToFloat(const at::Tensor& x, const at::Tensor& weight, std::span<float> out);

}  // namespace syncline::model
