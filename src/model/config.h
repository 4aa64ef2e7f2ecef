// What a checkpoint directory says about its model: config.json and generation_config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/rope.h"
#include "quant/config.h"

namespace syncline::model {

// A mixture of experts (config.json of Qwen3-MoE and DeepSeek).
struct ExpertsConfig {
  std::uint32_t experts = 0;
  std::uint32_t per_token = 0;
  std::uint32_t width = 0;   // intermediate size of one expert
  std::uint32_t shared = 0;  // experts' widths of the MLP that every token goes through
  std::uint32_t groups = 1;  // experts are chosen only among the best groups
  std::uint32_t groups_per_token = 1;
  enum class Scoring { kSoftmax, kSigmoid };
  Scoring scoring = Scoring::kSoftmax;
  // How a group is ranked: by its best expert or by the sum of its best two.
  enum class GroupScore { kMax, kBestTwo };
  GroupScore group_score = GroupScore::kMax;
  bool normalise = false;        // the weights of a token's experts add up to 1
  double scale = 1.0;            // of those weights
  bool correction_bias = false;  // added to the scores for choosing only
  // Layers whose MLP is not a mixture: the first ones, all but every `step`th, and those listed.
  std::uint32_t first_dense = 0;
  std::uint32_t step = 1;
  std::uint32_t phase = 0;  // mixtures are where layer + phase is a multiple of `step`
  std::vector<std::uint32_t> dense_layers;  // ascending

  // Whether the layer's MLP is a mixture.
  bool Has(std::uint32_t layer) const;
  bool operator==(const ExpertsConfig&) const = default;
};

// Multi-head latent attention (DeepSeek).
struct LatentConfig {
  std::uint32_t q_rank = 0;      // 0: queries come straight from the hidden state
  std::uint32_t kv_rank = 0;     // size of the latent vector
  std::uint32_t nope_size = 0;   // of a head of queries and keys: the part without position
  std::uint32_t rope_size = 0;   // the part that is rotated; the keys' is shared by all heads
  std::uint32_t value_size = 0;  // of a head of values
  bool interleaved = true;       // pairs to rotate are neighbours (i, i + 1)

  bool operator==(const LatentConfig&) const = default;
};

struct ModelConfig {
  std::string model_type;                  // "llama"
  std::vector<std::string> architectures;  // {"LlamaForCausalLM"}
  std::uint32_t vocabulary = 0;
  std::uint32_t hidden = 0;
  std::uint32_t intermediate = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size = 0;
  std::uint32_t max_positions = 0;
  double rms_norm_epsilon = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;              // of gate, up and down
  bool qk_norm = false;               // an RMS norm of each query and key head
  std::uint32_t window = 0;           // tokens that one sees, itself included; 0: all
  std::vector<bool> windowed_layers;  // which layers have the window; empty: all
  std::uint32_t draft_layers = 0;     // of the checkpoint after `layers`: not the model's
  std::optional<ExpertsConfig> experts;
  std::optional<LatentConfig> latent;
  RopeConfig rope;
  quant::QuantConfig quantisation;
  std::vector<std::int32_t> end_tokens;  // eos_token_id of both files

  // The one that is served; empty if there is none.
  std::string architecture() const { return architectures.empty() ? "" : architectures.front(); }
  bool operator==(const ModelConfig&) const = default;
};

// Reads `directory`/config.json and, where it is there, generation_config.json. kCorrupt names the
// file and the field that is missing or of the wrong kind; kIncompatible an architecture or a
// setting that we do not serve. `scales`: of a model that is quantised to block-wise fp8.
base::Result<ModelConfig> ReadModelConfig(base::FileSystem& files, const std::string& directory,
                                          quant::Fp8Scales scales = quant::Fp8Scales::kAuto);

// The same for a config.json at hand.
base::Result<ModelConfig> ParseModelConfig(const base::Json& config,
                                           quant::Fp8Scales scales = quant::Fp8Scales::kAuto);

}  // namespace syncline::model
