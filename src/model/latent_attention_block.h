// Multi-head latent attention (DeepSeek-V2, 2024): the cache holds one latent vector and one
// rotated key part for each token, from which all heads' keys and values follow.
//
// Keys and values are never expanded, in prompts neither: the matrices that would make them are
// multiplied into the queries and into the mix ("absorbed"). So all heads share one key, of latent
// + rope elements, of which the latent part is also the value. For long prompts that is up to twice
// the work of the expanded form, in the attention itself, which is a small part of the whole.
//
//   absorbed_k [local heads, latent, nope] and absorbed_v [local heads, value, latent] are
//   derived: kv_b_proj [local heads · (nope + value), latent], in each head its key rows transposed
//   and its value rows.
#pragma once

#include <memory>
#include <vector>

#include "model/attention_block.h"
#include "model/config.h"
#include "model/decoder_plan.h"

namespace syncline::model {

// `config.latent` is there. `layers`: of each layer. `shard`: whose heads are here.
std::unique_ptr<AttentionBlock> MakeLatentAttention(
    const ModelConfig& config, const layout::Shard& shard,
    const std::vector<LatentAttentionParameters>& layers, const ParameterTensors& parameters);

}  // namespace syncline::model
