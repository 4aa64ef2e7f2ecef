#include "model/linear.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>

#include "model/cpu_linear.h"
#include "model/panel_linear.h"
#include "model/parallel.h"

namespace syncline::model {
namespace {

// Where the processor multiplies tiles of bf16 (AMX), ATen's products of more rows than these are
// faster.
constexpr std::int64_t kMostRowsBesideTiles = 32;

bool HasTiles() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("amx-bf16") != 0;
#else
  return false;
#endif
}

bool HasKernel(const at::Tensor& x, const at::Tensor& weight) {
  return HasLinearKernel(x) && weight.scalar_type() == at::kBFloat16 && weight.is_contiguous();
}

const Bf16* Bits(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const Bf16*>(tensor.const_data_ptr()) : nullptr;
}

template <typename Out>
void RunKernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Out* out) {
  const LinearProblem problem{.x = Bits(x),
                              .weight = Bits(weight),
                              .bias = Bits(bias),
                              .rows = static_cast<std::size_t>(x.size(0)),
                              .inputs = static_cast<std::size_t>(x.size(1)),
                              .outputs = static_cast<std::size_t>(weight.size(0))};
  const auto units = static_cast<std::int64_t>(LinearUnits(problem));
  // Some 10 bytes of weights a nanosecond, or 64 products.
  const std::int64_t cost = weight.size(1) * std::max<std::int64_t>(8, x.size(0)) / 16;
  ParallelFor(units, cost, [&](std::int64_t first, std::int64_t last) {
    LinearOutputs(problem, static_cast<std::size_t>(first), static_cast<std::size_t>(last), out);
  });
}

std::span<float> Floats(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

bool HasLinearKernel(const at::Tensor& x) {
  static const bool has_tiles = HasTiles();
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.is_contiguous() &&
         (!has_tiles || x.size(0) <= kMostRowsBesideTiles);
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!HasKernel(x, weight)) return at::linear(x, weight, bias);
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  RunKernel(x, weight, bias, static_cast<Bf16*>(out.mutable_data_ptr()));
  return out;
}

at::Tensor Linear(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias) {
  return weight.quantised() ? PanelLinear(x, weight, bias) : Linear(x, weight.Values(), bias);
}

void LinearToFloat(const at::Tensor& x, const at::Tensor& weight, std::span<float> out) {
  if (HasKernel(x, weight)) return RunKernel(x, weight, {}, out.data());
  const at::Tensor computed = at::linear(x, weight);
  at::from_blob(out.data(), computed.sizes(), at::kFloat).copy_(computed);
}

at::Tensor LinearToFloat(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  LinearToFloat(x, weight, Floats(out));
  return out;
}

at::Tensor LinearToFloat(const at::Tensor& x, const WeightMatrix& weight) {
  if (!weight.quantised()) return LinearToFloat(x, weight.Values());
  at::Tensor out = at::empty({x.size(0), weight.outputs()}, x.options().dtype(at::kFloat));
  PanelLinearToFloat(x, weight, Floats(out));
  return out;
}

at::Tensor BatchedLinear(const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t count = x.size(0);
  if (!HasKernel(x.select(0, 0), weight.select(0, 0))) {
    return at::bmm(x, weight.transpose(1, 2));
  }
  at::Tensor out = at::empty({count, x.size(1), weight.size(1)}, x.options());
  const LinearProblem sizes{.rows = static_cast<std::size_t>(x.size(1)),
                            .inputs = static_cast<std::size_t>(x.size(2)),
                            .outputs = static_cast<std::size_t>(weight.size(1))};
  auto* const results = static_cast<Bf16*>(out.mutable_data_ptr());
  const std::int64_t weights = weight.size(1) * weight.size(2);
  ParallelFor(count, weights * std::max<std::int64_t>(8, x.size(1)) / 64,
              [&](std::int64_t first, std::int64_t last) {
                for (std::int64_t i = first; i < last; ++i) {
                  LinearProblem problem = sizes;
                  problem.x = Bits(x) + i * x.size(1) * x.size(2);
                  problem.weight = Bits(weight) + i * weights;
                  LinearOutputs(problem, 0, LinearUnits(problem),
                                results + i * x.size(1) * weight.size(1));
                }
              });
  return out;
}

at::Tensor ExactLinear(const at::Tensor& x, const at::Tensor& weight) {
  if (!HasKernel(x, weight)) return at::linear(x.to(at::kFloat), weight.to(at::kFloat));
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  RunKernel(x, weight, {}, out.mutable_data_ptr<float>());
  return out;
}

SummedLinear::SummedLinear(WeightMatrix weight, const at::Tensor& bias, const layout::Shard& shard)
    : weight_(std::move(weight)), alone_(shard.size == 1) {
  if (alone_ || shard.rank == 0) bias_ = bias;
}

at::Tensor SummedLinear::Part(const at::Tensor& x) const {
  if (alone_) return Linear(x, weight_, bias_);
  at::Tensor part = LinearToFloat(x, weight_);
  if (bias_.defined()) part.add_(bias_);
  return part;
}

}  // namespace syncline::model
