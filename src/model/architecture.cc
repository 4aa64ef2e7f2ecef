#include "model/architecture.h"

#include <algorithm>
#include <array>

namespace syncline::model {

// Each in the file of its name.
extern const Architecture kDeepseekV2;
extern const Architecture kDeepseekV3;
extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;

std::span<const Architecture* const> Architectures() {
  static constexpr std::array kAll = {&kLlama,    &kMistral,    &kQwen2,     &kQwen3,
                                      &kQwen3Moe, &kDeepseekV2, &kDeepseekV3};
  return kAll;
}

const Architecture* FindArchitecture(std::string_view name) {
  const auto all = Architectures();
  const auto found = std::ranges::find(all, name, &Architecture::name);
  return found == all.end() ? nullptr : *found;
}

base::Result<DecoderPlan> PlanModel(const ModelConfig& config, const layout::Shard& shard,
                                    layout::ShardPlanner::DtypeOf dtype_of) {
  const Architecture* architecture = FindArchitecture(config.architecture());
  if (architecture == nullptr) {
    return base::Fail(base::Code::kIncompatible,
                      "architectures: " + config.architecture() + " is not served");
  }
  return PlanDecoder(config, shard, std::move(dtype_of), architecture->layer);
}

}  // namespace syncline::model
