// Grouped-query attention (Ainslie et al., 2023) with rotary embedding.
#pragma once

#include <memory>
#include <vector>

#include "model/attention_block.h"
#include "model/config.h"
#include "model/decoder_plan.h"

namespace syncline::model {

// `layers`: of each layer. `shard`: whose heads are here.
std::unique_ptr<AttentionBlock> MakeGroupedAttention(
    const ModelConfig& config, const layout::Shard& shard,
    const std::vector<GroupedAttentionParameters>& layers, const ParameterTensors& parameters);

}  // namespace syncline::model
