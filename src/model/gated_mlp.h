// SwiGLU (Shazeer, 2020): down(silu(gate(x)) · up(x)).
#pragma once

#include <memory>

#include "model/decoder_plan.h"
#include "model/mlp_block.h"
#include "model/parameter_tensors.h"

namespace syncline::model {

std::unique_ptr<MlpBlock> MakeGatedMlp(const layout::Shard& shard, const GatedMlpParameters& mlp,
                                       const ParameterTensors& parameters);

}  // namespace syncline::model
