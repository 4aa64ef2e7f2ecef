#include "model/panel_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/cpu_linear.h"
#include "model/linear.h"
#include "model/parallel.h"

namespace syncline::model {
namespace {

// Of a panel: small beside the second cache, and small enough that all threads have panels to the
// end.
constexpr std::int64_t kPanelBytes = 64 << 10;
// Of a panel for ATen, which shares its own work out.
constexpr std::int64_t kAtenRows = 512;

// Rows of a panel: what the scheme reads and the kernels compute at once divide it.
std::int64_t PanelRows(const WeightMatrix& weight, std::int64_t wanted) {
  const std::int64_t step = std::max<std::int64_t>(4, std::lcm(weight.RowStep(), std::int64_t{4}));
  return std::max<std::int64_t>(1, wanted / step) * step;
}

const Bf16* Bits(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const Bf16*>(tensor.const_data_ptr()) : nullptr;
}

// One for each thread, of the size of the largest panel so far.
Bf16* Scratch(std::int64_t elements) {
  thread_local std::vector<Bf16> scratch;
  if (std::ssize(scratch) < elements) scratch.resize(static_cast<std::size_t>(elements));
  return scratch.data();
}

template <typename Out>
void RunKernel(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias, Out* out) {
  const std::int64_t inputs = weight.inputs();
  const std::int64_t outputs = weight.outputs();
  const std::int64_t panel = PanelRows(weight, kPanelBytes / (inputs * std::int64_t{sizeof(Bf16)}));
  // Some 4 values a nanosecond, or 64 products.
  const std::int64_t cost = panel * inputs / 64 * (16 + x.size(0));
  ParallelFor((outputs + panel - 1) / panel, cost, [&](std::int64_t begin, std::int64_t end) {
    Bf16* const values = Scratch(panel * inputs);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * panel;
      const std::int64_t last = std::min(outputs, first + panel);
      weight.Dequantise(first, last, values);
      const LinearProblem problem{.x = Bits(x),
                                  .weight = values,
                                  .bias = bias.defined() ? Bits(bias) + first : nullptr,
                                  .rows = static_cast<std::size_t>(x.size(0)),
                                  .inputs = static_cast<std::size_t>(inputs),
                                  .outputs = static_cast<std::size_t>(last - first),
                                  .stride = static_cast<std::size_t>(outputs)};
      LinearOutputs(problem, 0, LinearUnits(problem), out + first);
    }
  });
}

// `out`: [rows, outputs], of any floating-point type.
void RunAten(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias,
             const at::Tensor& out) {
  const std::int64_t outputs = weight.outputs();
  const std::int64_t panel = PanelRows(weight, kAtenRows);
  for (std::int64_t first = 0; first < outputs; first += panel) {
    const std::int64_t last = std::min(outputs, first + panel);
    const at::Tensor part = bias.defined() ? bias.narrow(0, first, last - first) : bias;
    out.narrow(1, first, last - first)
        .copy_(at::linear(x, weight.Values(first, last).to(x.scalar_type()), part));
  }
}

void CheckDevice(const at::Tensor& x) {
  TORCH_CHECK(x.is_cpu(), "products with quantised weights are computed on CPU only, found ",
              x.device().str());
}

}  // namespace

at::Tensor PanelLinear(const at::Tensor& x, const WeightMatrix& weight, const at::Tensor& bias) {
  CheckDevice(x);
  at::Tensor out = at::empty({x.size(0), weight.outputs()}, x.options());
  if (HasLinearKernel(x)) {
    RunKernel(x, weight, bias, static_cast<Bf16*>(out.mutable_data_ptr()));
  } else {
    RunAten(x, weight, bias, out);
  }
  return out;
}

void PanelLinearToFloat(const at::Tensor& x, const WeightMatrix& weight, std::span<float> out) {
  CheckDevice(x);
  if (HasLinearKernel(x)) return RunKernel(x, weight, /*bias=*/{}, out.data());
  RunAten(x, weight, /*bias=*/{},
          at::from_blob(out.data(), {x.size(0), weight.outputs()}, at::kFloat));
}

}  // namespace syncline::model
