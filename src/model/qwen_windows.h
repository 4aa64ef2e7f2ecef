// The sliding windows of Qwen2 and Qwen3, which only some of the layers have.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "model/config.h"

namespace syncline::model {

// Sets `window` and `windowed_layers` from use_sliding_window, sliding_window, and layer_types or
// max_window_layers. kIncompatible for a type of layer that is not known.
base::Status ReadQwenWindows(const base::Json& json, ModelConfig& config);

}  // namespace syncline::model
