// For tests: ranks of small models (small_models.h), with random weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/decoder_plan.h"
#include "model/model.h"
#include "model/small_models.h"

namespace syncline::model {

ModelConfig ParseSmall(const SmallModel& model);
base::Result<DecoderPlan> PlanSmall(const SmallModel& model, const layout::Shard& shard);

// Random fp32 values for all tensors of the checkpoint, in the order of the plans' tensors. Norms
// are around 1.
using Weights = std::vector<std::vector<std::byte>>;
Weights MakeWeights(const layout::Plan& plan, std::uint32_t seed);

// Writes them into memory laid out by the plan, with its padding.
void ScatterAll(const layout::Plan& plan, const Weights& weights,
                std::span<const base::MutableByteSpan> memory);

// One rank of the model, with these weights and `blocks` blocks of cache.
base::Result<std::unique_ptr<Model>> MakeRank(const SmallModel& model, const Weights& weights,
                                              const ModelOptions& options, std::uint32_t blocks);

}  // namespace syncline::model
