// One run:
//   1. the router's logits and the routes, in fp32, for all experts;
//   2. the rows that go to an expert of this rank are sorted by expert, in the order of the rows;
//   3. each expert that has rows computes them together, and adds their weighted results to the
//      sum, in fp32. Experts without rows are not read.
// Invariant: a row's terms are added in the order of the experts, so its sum does not depend on the
// rows beside it.
#include "model/expert_mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "model/gated_mlp.h"
#include "model/linear.h"
#include "model/ops.h"
#include "model/routing.h"

namespace syncline::model {
namespace {

std::span<const float> Floats(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// fp32 where the router can read it.
at::Tensor ToHost(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat).cpu().contiguous() : tensor;
}

template <typename T>
at::Tensor ToDevice(std::span<const T> values, at::ScalarType type, at::Device device) {
  return at::from_blob(const_cast<T*>(values.data()), {std::ssize(values)}, type).to(device);
}

// What goes to the experts of one rank, sorted by expert.
struct Arrivals {
  std::vector<std::int64_t> rows;
  std::vector<float> weights;
  std::vector<std::size_t> begin;  // of each local expert, and the end
};

// `first`, `count`: the experts of this rank.
Arrivals Sort(const Routes& routes, std::uint32_t per_token, std::uint32_t first,
              std::uint32_t count) {
  Arrivals arrivals;
  arrivals.begin.assign(std::size_t{count} + 1, 0);
  for (const std::uint32_t expert : routes.experts) {
    if (expert - first < count) ++arrivals.begin[expert - first + 1];
  }
  for (std::size_t i = 0; i < count; ++i) arrivals.begin[i + 1] += arrivals.begin[i];
  arrivals.rows.resize(arrivals.begin.back());
  arrivals.weights.resize(arrivals.begin.back());
  std::vector<std::size_t> next(arrivals.begin.begin(), arrivals.begin.end() - 1);
  for (std::size_t i = 0; i < routes.experts.size(); ++i) {
    const std::uint32_t local = routes.experts[i] - first;
    if (local >= count) continue;
    const std::size_t place = next[local]++;
    arrivals.rows[place] = static_cast<std::int64_t>(i / per_token);
    arrivals.weights[place] = routes.weights[i];
  }
  return arrivals;
}

class ExpertMlp : public MlpBlock {
 public:
  // `first`: number of the first expert of this rank. `shared` may be null.
  ExpertMlp(const ExpertsConfig& config, std::uint32_t first, at::Tensor router,
            at::Tensor correction_bias, WeightMatrix gate_up, WeightMatrix down,
            std::unique_ptr<MlpBlock> shared)
      : config_(config),
        first_(first),
        router_(std::move(router)),
        correction_bias_(std::move(correction_bias)),
        gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        shared_(std::move(shared)) {}

  at::Tensor Run(const at::Tensor& x, std::vector<std::uint32_t>* chosen) const override {
    const at::Tensor logits = ToHost(ExactLinear(x, router_));
    const at::Tensor bias = ToHost(correction_bias_);
    const auto local = static_cast<std::uint32_t>(gate_up_.matrices());
    Routes routes = ChooseExperts(config_, Floats(logits), Floats(bias));
    const Arrivals arrivals = Sort(routes, config_.per_token, first_, local);
    if (chosen != nullptr) *chosen = std::move(routes.experts);
    at::Tensor sum = shared_ != nullptr ? shared_->Run(x, nullptr).to(at::kFloat)
                                        : at::zeros(x.sizes(), x.options().dtype(at::kFloat));
    for (std::uint32_t i = 0; i < local; ++i) AddExpert(i, arrivals, x, sum);
    return sum;
  }

 private:
  void AddExpert(std::uint32_t expert, const Arrivals& arrivals, const at::Tensor& x,
                 at::Tensor& sum) const {
    const std::size_t begin = arrivals.begin[expert];
    const std::size_t count = arrivals.begin[expert + 1] - begin;
    if (count == 0) return;
    const at::Tensor rows =
        ToDevice(std::span(arrivals.rows).subspan(begin, count), at::kLong, x.device());
    const at::Tensor weights =
        ToDevice(std::span(arrivals.weights).subspan(begin, count), at::kFloat, x.device());
    const at::Tensor inner =
        SiluAndMultiply(Linear(at::index_select(x, 0, rows), gate_up_.Select(expert), /*bias=*/{}));
    const at::Tensor result = LinearToFloat(inner, down_.Select(expert));
    sum.index_add_(0, rows, result * weights.unsqueeze(1));
  }

  ExpertsConfig config_;
  std::uint32_t first_;
  at::Tensor router_;
  at::Tensor correction_bias_;  // undefined: none
  WeightMatrix gate_up_;
  WeightMatrix down_;
  std::unique_ptr<MlpBlock> shared_;
};

}  // namespace

std::unique_ptr<MlpBlock> MakeExpertMlp(const ExpertsConfig& config, const layout::Shard& shard,
                                        const ExpertsParameters& experts,
                                        const ParameterTensors& parameters) {
  std::unique_ptr<MlpBlock> shared;
  if (experts.shared.gate_up.there()) shared = MakeGatedMlp(shard, experts.shared, parameters);
  const std::uint32_t local = config.experts / shard.expert_groups;
  return std::make_unique<ExpertMlp>(
      config, shard.expert_group() * local, parameters[experts.router],
      parameters[experts.correction_bias], parameters.Matrix(experts.gate_up),
      parameters.Matrix(experts.down), std::move(shared));
}

}  // namespace syncline::model
