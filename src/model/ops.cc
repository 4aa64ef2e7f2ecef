#include "model/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/square.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include "model/cpu_norm.h"
#include "model/cpu_silu.h"
#include "model/parallel.h"

namespace syncline::model {
namespace {

template <typename T>
void AddAndNormRows(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                    double epsilon, const at::Tensor& out) {
  const std::int64_t width = x.size(1);
  auto* stream = static_cast<float*>(x.mutable_data_ptr());
  const auto* added = add.defined() ? static_cast<const T*>(add.const_data_ptr()) : nullptr;
  const auto* weights = static_cast<const T*>(weight.const_data_ptr());
  auto* normed = static_cast<T*>(out.mutable_data_ptr());
  ParallelFor(x.size(0), width / 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first * width; at < last * width; at += width) {
      AddAndNormRow(stream + at, added == nullptr ? nullptr : added + at, weights, normed + at,
                    static_cast<std::size_t>(width), static_cast<float>(epsilon));
    }
  });
}

template <typename T>
void SiluAndMultiplyRows(const at::Tensor& gate_up, const at::Tensor& out) {
  const std::int64_t width = out.size(1);
  const auto* in = static_cast<const T*>(gate_up.const_data_ptr());
  auto* rows = static_cast<T*>(out.mutable_data_ptr());
  ParallelFor(out.size(0), width / 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first * width; at < last * width; at += width) {
      SiluAndMultiplyRow(in + 2 * at, in + 2 * at + width, rows + at,
                         static_cast<std::size_t>(width));
    }
  });
}

}  // namespace

bool HasKernels(const at::TensorOptions& options) {
  const auto type = options.dtype().toScalarType();
  return options.device().is_cpu() && (type == at::kBFloat16 || type == at::kFloat);
}

at::Tensor AddAndNorm(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                      double epsilon) {
  if (!HasKernels(weight.options())) return reference::AddAndNorm(x, add, weight, epsilon);
  if (add.defined() && add.scalar_type() != weight.scalar_type()) {
    x.add_(add);
    return AddAndNorm(x, {}, weight, epsilon);
  }
  at::Tensor out = at::empty(x.sizes(), weight.options());
  if (weight.scalar_type() == at::kFloat) {
    AddAndNormRows<float>(x, add, weight, epsilon, out);
  } else {
    AddAndNormRows<Bf16>(x, add, weight, epsilon, out);
  }
  return out;
}

at::Tensor SiluAndMultiply(const at::Tensor& gate_up) {
  if (!HasKernels(gate_up.options())) return reference::SiluAndMultiply(gate_up);
  at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  if (gate_up.scalar_type() == at::kFloat) {
    SiluAndMultiplyRows<float>(gate_up, out);
  } else {
    SiluAndMultiplyRows<Bf16>(gate_up, out);
  }
  return out;
}

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor low = x.narrow(-1, 0, half).to(at::kFloat);
  const at::Tensor high = x.narrow(-1, half, half).to(at::kFloat);
  const at::Tensor c = cosine.unsqueeze(1);
  const at::Tensor s = sine.unsqueeze(1);
  return at::cat({low * c - high * s, high * c + low * s}, -1).to(x.scalar_type());
}

at::Tensor RotateNeighbours(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const at::Tensor pairs = x.to(at::kFloat).unflatten(-1, {x.size(-1) / 2, 2});
  const at::Tensor even = pairs.select(-1, 0);
  const at::Tensor odd = pairs.select(-1, 1);
  const at::Tensor c = cosine.unsqueeze(1);
  const at::Tensor s = sine.unsqueeze(1);
  return at::stack({even * c - odd * s, odd * c + even * s}, -1).flatten(-2).to(x.scalar_type());
}

void NormHeads(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor heads = x.to(at::kFloat).reshape({-1, x.size(-1)}).contiguous();
  x.copy_(AddAndNorm(heads, {}, weight, epsilon).view(x.sizes()));
}

at::Tensor reference::AddAndNorm(const at::Tensor& x, const at::Tensor& add,
                                 const at::Tensor& weight, double epsilon) {
  if (add.defined()) x.add_(add);
  const at::Tensor scale = at::rsqrt(at::mean(at::square(x), {-1}, /*keepdim=*/true) + epsilon);
  return (weight * (x * scale)).to(weight.scalar_type());
}

at::Tensor reference::SiluAndMultiply(const at::Tensor& gate_up) {
  const std::int64_t half = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, half)) * gate_up.narrow(-1, half, half);
}

}  // namespace syncline::model
