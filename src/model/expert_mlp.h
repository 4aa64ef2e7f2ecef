// A mixture of experts (Shazeer et al., 2017): each token goes through some of many gated MLPs, and
// through one that all tokens share where the model has it.
//
// A rank computes its experts, or its part of their width, and its part of the shared MLP. All
// ranks route alike, for they see the same bits (routing.h).
#pragma once

#include <memory>

#include "model/config.h"
#include "model/decoder_plan.h"
#include "model/mlp_block.h"
#include "model/parameter_tensors.h"

namespace syncline::model {

std::unique_ptr<MlpBlock> MakeExpertMlp(const ExpertsConfig& config, const layout::Shard& shard,
                                        const ExpertsParameters& experts,
                                        const ParameterTensors& parameters);

}  // namespace syncline::model
