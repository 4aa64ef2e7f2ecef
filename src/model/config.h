// What a checkpoint directory says about its model: config.json and generation_config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/rope.h"

namespace syncline::model {

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
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;        // of gate, up and down
  RopeConfig rope;
  std::vector<std::int32_t> end_tokens;  // eos_token_id of both files

  bool operator==(const ModelConfig&) const = default;
};

// Reads `directory`/config.json and, where it is there, generation_config.json. kCorrupt names the
// file and the field that is missing or of the wrong kind; kIncompatible an architecture or a
// setting that we do not serve.
base::Result<ModelConfig> ReadModelConfig(base::FileSystem& files, const std::string& directory);

// The same for a config.json at hand.
base::Result<ModelConfig> ParseModelConfig(const base::Json& config);

}  // namespace syncline::model
