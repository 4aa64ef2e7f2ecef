// The matrix products of a transformer's layers.
//
// On CPU in bf16 they are computed by kernels that read the weights in place (cpu_linear.h), so
// that a row's result does not depend on the rows beside it; where the processor has AMX, only up
// to 32 rows. Everything else is ATen's. Both add up in fp32 and round once.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "layout/shard.h"
#include "model/weight_matrix.h"

namespace syncline::model {

// Are products of x with contiguous weights in bf16 computed by the kernels?
bool HasLinearKernel(const at::Tensor& x);

// x · weightᵀ + bias. x: [rows, inputs], weight: [outputs, inputs], bias: [outputs] or undefined.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor Linear(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias);

// x · weightᵀ as fp32 into `out`, which holds rows · outputs values. The kernels do not round it to
// the type of x; ATen does.
void LinearToFloat(const at::Tensor& x, const at::Tensor& weight, std::span<float> out);

// The same into a new tensor.
at::Tensor LinearToFloat(const at::Tensor& x, const at::Tensor& weight);
at::Tensor LinearToFloat(const at::Tensor& x, const WeightMatrix& weight);

// Many products of the same sizes: of each i, x[i] · weight[i]ᵀ. x: [n, rows, inputs], contiguous;
// weight: [n, outputs, inputs] → [n, rows, outputs], in the type of x.
at::Tensor BatchedLinear(const at::Tensor& x, const at::Tensor& weight);

// x · weightᵀ in fp32, of operands in any types, which are not rounded on the way.
at::Tensor ExactLinear(const at::Tensor& x, const at::Tensor& weight);

// A matrix product whose inputs are divided among ranks (row parallel): the results of all ranks
// add up to the result.
class SummedLinear {
 public:
  // weight: [outputs, local inputs]; bias: [outputs] or undefined, the same on all ranks.
  SummedLinear(WeightMatrix weight, const at::Tensor& bias, const layout::Shard& shard);

  // x: [rows, local inputs]. Of one rank as Linear; of several in fp32, with the bias in the part of
  // rank 0.
  at::Tensor Part(const at::Tensor& x) const;

 private:
  WeightMatrix weight_;
  at::Tensor bias_;
  bool alone_;
};

}  // namespace syncline::model
