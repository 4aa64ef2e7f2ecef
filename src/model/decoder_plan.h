// The parameters of a decoder-only transformer on one rank: the blocks that the architectures are
// made of, and where checkpoint tensors lie in them. No tensor types of torch here.
//
//   checkpoint module                        module of the engine (linear_plan.h)
//   model.embed_tokens                       the same; also the head of a tied model
//   model.layers.N.self_attn.{q,k,v}_proj    model.layers.N.self_attn.qkv_proj, rows stacked
//   model.layers.N.mlp.{gate,up}_proj        model.layers.N.mlp.gate_up_proj, rows stacked
//   …mlp.experts.E.{gate,up}_proj            …mlp.experts.w13_weight [local experts, 2 · width, …]
//   …mlp.experts.E.down_proj                 …mlp.experts.w2_weight
//   (derived, see latent_attention_block.h)  …self_attn.kv_b_proj.absorbed_{k,v}
//   everything else                          the same
// A parameter is a module's `weight`, or what a quantised one has in its place. Biases follow their
// weights. Quantised are linear modules, but for embedding, head and routers. Skipped:
// *.rotary_emb.inv_freq, *.weight_shape, and a draft's layers after the last.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "layout/plan.h"
#include "layout/shard_planner.h"
#include "model/config.h"
#include "model/linear_plan.h"
#include "quant/units.h"

namespace syncline::model {

// Attention with query heads that share key heads in groups.
struct GroupedAttentionParameters {
  LinearParameters qkv;
  std::size_t q_norm = kNone;  // of each head
  std::size_t k_norm = kNone;
};

// Multi-head latent attention (DeepSeek-V2, 2024): keys and values come from one latent vector.
struct LatentAttentionParameters {
  LinearParameters q;    // without q-LoRA: [local heads · (nope + rope), hidden]
  LinearParameters q_a;  // with it: first q_a_proj, then q_b_proj
  std::size_t q_a_norm = kNone;
  LinearParameters q_b;
  LinearParameters kv_a;           // [latent + rope, hidden], not divided
  std::size_t kv_a_norm = kNone;   // [latent]
  LinearParameters kv_b;           // [local heads · (nope + value), latent]
  std::size_t absorbed_k = kNone;  // derived: [local heads, latent, nope]
  std::size_t absorbed_v = kNone;  // derived: [local heads, value, latent]
};

// down(silu(gate) · up)
struct GatedMlpParameters {
  LinearParameters gate_up;
  LinearParameters down;
};

// A mixture of gated MLPs: a router sends each token to some of them.
struct ExpertsParameters {
  std::size_t router = kNone;           // [experts, hidden], not divided
  std::size_t correction_bias = kNone;  // [experts], not divided
  LinearParameters gate_up;             // [local experts, 2 · local width, hidden]
  LinearParameters down;                // [local experts, hidden, local width]
  GatedMlpParameters shared;            // for every token; none: nothing is there
};

struct LayerParameters {
  std::size_t input_norm = kNone;
  std::variant<GroupedAttentionParameters, LatentAttentionParameters> attention;
  LinearParameters o;
  std::size_t post_norm = kNone;
  std::variant<GatedMlpParameters, ExpertsParameters> mlp;
};

struct DecoderPlan {
  layout::Plan plan;
  quant::Units units;
  // Of what goes into linear modules and comes out of them.
  tensor::Dtype activation = tensor::Dtype::kBF16;
  layout::Shard shard;
  std::size_t embedding = kNone;
  std::size_t final_norm = kNone;
  std::size_t head = kNone;  // equals `embedding` in a tied model
  std::vector<LayerParameters> layers;
};

// Parts of a plan, for the architectures. `prefix` ends with a dot.
GroupedAttentionParameters PlanGroupedAttention(LinearPlanner& planner, const std::string& prefix,
                                                const ModelConfig& config);
LatentAttentionParameters PlanLatentAttention(LinearPlanner& planner, const std::string& prefix,
                                              const ModelConfig& config);
ExpertsParameters PlanExperts(LinearPlanner& planner, const std::string& prefix,
                              const ModelConfig& config);
GatedMlpParameters PlanGatedMlp(LinearPlanner& planner, const std::string& prefix,
                                std::uint64_t width, const ModelConfig& config);

// A whole decoder: embedding, layers, final norm and head, which all architectures have. `layer`
// plans what lies between a layer's norms.
using PlanLayer = void (*)(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
                           const ModelConfig& config, LayerParameters& parameters);
base::Result<DecoderPlan> PlanDecoder(const ModelConfig& config, const layout::Shard& shard,
                                      layout::ShardPlanner::DtypeOf dtype_of, PlanLayer layer);

// What architectures use as they are: grouped or latent attention, then a mixture of experts in the
// layers where `config` has one, and one gated MLP in the others.
void PlanGroupedLayer(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
                      const ModelConfig& config, LayerParameters& parameters);
void PlanLatentLayer(LinearPlanner& planner, const std::string& prefix, std::uint32_t layer,
                     const ModelConfig& config, LayerParameters& parameters);

}  // namespace syncline::model
