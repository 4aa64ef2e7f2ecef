#include "model/small_ranks.h"

#include <fmt/core.h>

#include <bit>
#include <cstdlib>
#include <random>

#include "base/bytes.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace syncline::model {

ModelConfig ParseSmall(const SmallModel& model) {
  auto json = base::ParseJson(model.config);
  if (!json) std::abort();
  auto config = ParseModelConfig(*json);
  if (!config) {
    fmt::print(stderr, "{}: {}\n", model.config, config.error().message);
    std::abort();
  }
  return *std::move(config);
}

base::Result<DecoderPlan> PlanSmall(const SmallModel& model, const layout::Shard& shard) {
  const tensor::Dtype dtype = model.tensors.front().dtype;
  return PlanModel(ParseSmall(model), shard, [dtype](std::string_view) { return dtype; });
}

Weights MakeWeights(const layout::Plan& plan, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  Weights weights;
  for (const layout::TensorSpec& spec : plan.tensors()) {
    const float middle = spec.name.find("norm") != std::string::npos ? 1.0F : 0.0F;
    auto& bytes = weights.emplace_back(spec.bytes());
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      base::Store(bytes.data() + i, std::bit_cast<std::uint32_t>(middle + normal(random)));
    }
  }
  return weights;
}

void ScatterAll(const layout::Plan& plan, const Weights& weights,
                std::span<const base::MutableByteSpan> memory) {
  for (std::size_t i = 0; i < weights.size(); ++i) plan.Scatter(i, weights[i], memory);
  plan.ClearFills(memory);
}

base::Result<std::unique_ptr<Model>> MakeRank(const SmallModel& model, const Weights& weights,
                                              const ModelOptions& options, std::uint32_t blocks) {
  SYNCLINE_ASSIGN(DecoderPlan decoder, PlanSmall(model, options.shard));
  SYNCLINE_ASSIGN(Parameters parameters, Parameters::Create(decoder.plan, decoder.units));
  ScatterAll(decoder.plan, weights, parameters.live());
  SYNCLINE_ASSIGN(auto made, MakeDecoder(ParseSmall(model), std::move(decoder),
                                         std::move(parameters), options));
  SYNCLINE_TRY(made->Derive(made->parameters().live()));
  SYNCLINE_TRY(made->ReserveKv(blocks));
  return made;
}

}  // namespace syncline::model
