// For tests: small configurations of every architecture, drawn at random, with the tensors that
// transformers' save_pretrained writes for them, listed by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "layout/plan.h"
#include "model/decoder_plan.h"
#include "model/model.h"

namespace syncline::model {

struct SmallModel {
  std::string config;                       // config.json; empty for an architecture not known here
  std::vector<layout::TensorSpec> tensors;  // of the checkpoint, in no order
};

// The same seed, the same model. `dtype`: of all tensors. Sizes divide by 4 where `even`, and
// mostly do not otherwise.
SmallModel MakeSmallModel(std::string_view architecture, std::uint32_t seed, tensor::Dtype dtype,
                          bool even);

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
