// Llama's parameters and where its checkpoint's tensors lie in them.
//
//   checkpoint tensor, without .weight       parameter
//   model.embed_tokens                       the same; also the head of a tied model
//   model.layers.N.self_attn.{q,k,v}_proj    model.layers.N.self_attn.qkv_proj, rows stacked
//   model.layers.N.mlp.{gate,up}_proj        model.layers.N.mlp.gate_up_proj, rows stacked
//   everything else                          the same
// Biases follow their weights. Skipped: *.rotary_emb.inv_freq.
#pragma once

#include "base/error.h"
#include "layout/plan.h"
#include "model/config.h"

namespace syncline::model {

// The numbers of one layer's parameters in the plan; npos where the model has none.
struct LlamaLayerParameters {
  std::size_t input_norm, qkv, qkv_bias, o, o_bias, post_norm, gate_up, gate_up_bias, down,
      down_bias;
};

struct LlamaPlan {
  layout::Plan plan;
  std::size_t embedding = 0;
  std::size_t final_norm = 0;
  std::size_t head = 0;  // equals `embedding` in a tied model
  std::vector<LlamaLayerParameters> layers;
};

// `dtype`: of every parameter.
base::Result<LlamaPlan> PlanLlama(const ModelConfig& config, tensor::Dtype dtype);

}  // namespace syncline::model
