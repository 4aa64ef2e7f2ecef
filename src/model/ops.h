// The small operations between the matrix products of a transformer, on tensors of any device and
// floating-point type. Each is computed in fp32 and rounded once, unless said otherwise.
//
// On CPU in bf16 and fp32 they run on kernels of our own (cpu_norm.h, cpu_silu.h), elsewhere on
// ATen's operations, which are also here by themselves (reference::).
#pragma once

#include <ATen/core/Tensor.h>

namespace syncline::model {

// Whether there are CPU kernels for such tensors.
bool HasKernels(const at::TensorOptions& options);

// Where `add` is defined: x += add, in place. Returns the root-mean-square norm of x over its last
// dimension, x / sqrt(mean(x²) + epsilon) times `weight` (Zhang and Sennrich, 2019), in the type of
// `weight`. x: fp32 [rows, n], contiguous; add: [rows, n], contiguous, in that type or fp32;
// weight: [n].
at::Tensor AddAndNorm(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                      double epsilon);

// silu(gate) rounded, times up, for rows that hold gate and up side by side: [rows, 2n], contiguous
// → [rows, n].
at::Tensor SiluAndMultiply(const at::Tensor& gate_up);

// Rotates pairs (i, i + n/2) of the last dimension by each row's angles. x: [rows, heads, n];
// cosine, sine: fp32 [rows, n/2]. ATen only.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);

// The same of the pairs (2i, 2i + 1).
at::Tensor RotateNeighbours(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);

// The root-mean-square norm of each head on its own, as in AddAndNorm, in place. x: [rows, heads,
// n], whose last dimension is contiguous; weight: [n].
void NormHeads(const at::Tensor& x, const at::Tensor& weight, double epsilon);

namespace reference {
at::Tensor AddAndNorm(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                      double epsilon);
at::Tensor SiluAndMultiply(const at::Tensor& gate_up);
}  // namespace reference

}  // namespace syncline::model
