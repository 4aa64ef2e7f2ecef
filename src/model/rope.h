// Rotary position embedding: the frequencies of each variant.
//
// Source of the formulas: "RoFormer" (Su et al., 2021) for the plain form; "YaRN" (Peng et al.,
// 2023) for yarn; the Llama 3.1 model card's reference code for llama3. Names are those of Hugging
// Face configurations, in `rope_parameters` (current) or `rope_theta` and `rope_scaling` (older).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace syncline::model {

struct RopeConfig {
  // kDynamic differs from kDefault only beyond the trained length, which we do not serve.
  enum class Kind { kDefault, kLinear, kDynamic, kLlama3, kYarn };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  double original_positions = 0;       // llama3, yarn: length that the model was first trained for
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  double attention_factor = 1.0;       // yarn: multiplies cos and sin
  // What latent attention multiplies its scores by, for rotations that are stretched
  // ("mscale_all_dim").
  double score_factor = 1.0;
  bool truncate = true;  // yarn: corrected dimensions are whole numbers

  bool operator==(const RopeConfig&) const = default;
};

// From a config.json. kIncompatible names a variant that we do not know, kCorrupt a field that is
// missing or out of range.
base::Result<RopeConfig> ParseRopeConfig(const base::Json& config, std::uint32_t max_positions);

// Angle per position of each pair of dimensions: head_size / 2 values.
std::vector<float> InverseFrequencies(const RopeConfig& rope, std::uint32_t head_size);

}  // namespace syncline::model
