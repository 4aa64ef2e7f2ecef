// The architectures that are served: one file each (llama.cc, qwen3_moe.cc, …), which says what its
// configuration means and what its layers are made of. docs/guide/add-a-model.md.
#pragma once

#include <span>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "layout/shard.h"
#include "layout/shard_planner.h"
#include "model/config.h"
#include "model/decoder_plan.h"

namespace syncline::model {

struct Architecture {
  std::string_view name;  // in config.json's `architectures`
  // Reads what ParseModelConfig does not read for every model, and refuses what is not served.
  base::Status (*read)(const base::Json& json, ModelConfig& config);
  PlanLayer layer;
};

std::span<const Architecture* const> Architectures();
// Null for a name that is not served.
const Architecture* FindArchitecture(std::string_view name);

// The plan of one rank. kInvalidArgument where the model cannot be divided so. `dtype_of`: of the
// checkpoint's tensors.
base::Result<DecoderPlan> PlanModel(const ModelConfig& config, const layout::Shard& shard,
                                    layout::ShardPlanner::DtypeOf dtype_of);

}  // namespace syncline::model
