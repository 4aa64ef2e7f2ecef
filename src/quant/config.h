// `quantization_config` of a checkpoint's config.json: the scheme, and which modules it leaves out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "quant/module_patterns.h"
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
  // Those of `ignored`, as ReadQuantConfig makes them. Without it expressions match nothing.
  std::shared_ptr<const ModulePatterns> patterns = {};
  std::uint64_t group = 0;  // columns that share a scale of 4-bit integers; 0: all of them

  // Is the module ("model.layers.0.self_attn.q_proj") quantised? A module is left out by its name,
  // by that of a module that it is part of ("model.layers.0"), or by an expression; for fp8 also by
  // the end of its name ("mlp.gate"), as transformers does it. Embedding, head, norms and routers
  // never are quantised.
  bool Applies(std::string_view module) const;
  // Can checkpoints of one be loaded where those of the other were? How the runtime layout keeps
  // scales does not matter.
  bool operator==(const QuantConfig& other) const;
};

// Reads config.json (the whole of it). Served are
//   fp8                  with weight_block_size [128, 128] and dynamic activations
//   compressed-tensors   pack-quantized, one group of all linear modules, 4-bit symmetric integers
//                        by group or channel, activations as they are
// kIncompatible names the field with what else was found. `scales` only matters for fp8.
base::Result<QuantConfig> ReadQuantConfig(const base::Json& config, Fp8Scales scales);

// The checkpoint tensors of a quantised module, in the order of the scheme's slots.
std::vector<std::string> TensorNames(const Scheme& scheme, std::string_view module);

// Names, as layout::PlanBuilder::Skip takes them, of tensors that checkpoints of this method hold
// and that say nothing new.
std::vector<std::string> SkippedTensors(const QuantConfig& config);

}  // namespace syncline::quant
