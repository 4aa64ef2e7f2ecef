// `quantization_config` of a checkpoint's config.json: which scheme, and which modules it leaves out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "quant/scheme.h"

namespace syncline::quant {

// How the runtime layout keeps the scales of block-wise fp8.
enum class Fp8Scales {
  kAuto,  // as `scale_fmt` of the configuration says ("ue8m0"), else fp32
  kFp32,
  kUe8m0,  // powers of two, packed as DeepGEMM reads them
};

struct QuantConfig {
  std::string method;                    // `quant_method`; empty: the model is not quantised
  std::shared_ptr<const Scheme> scheme;  // null: not quantised
  std::vector<std::string> ignored;      // module names, or "re:" and a regular expression

  // Is the module ("model.layers.0.self_attn.q_proj") quantised? Embedding, head, norms and routers
  // never are.
  bool Applies(std::string_view module) const;
  bool operator==(const QuantConfig& other) const;  // by what was read
};

// Reads config.json (the whole of it). Served are fp8 with weight_block_size [128, 128] and dynamic
// activations, and compressed-tensors pack-quantized with 4-bit symmetric integers by group or
// channel; kIncompatible says what else was found.
base::Result<QuantConfig> ReadQuantConfig(const base::Json& config, Fp8Scales scales);

}  // namespace syncline::quant
