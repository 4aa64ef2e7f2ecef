#include "model/qwen_windows.h"

#include <fmt/core.h>

#include "model/json_fields.h"

namespace syncline::model {
namespace {

using base::Code;
using base::Json;

base::Status ReadLayerTypes(const Json& types, ModelConfig& config) {
  if (types.array() == nullptr || types.array()->size() != config.layers) {
    return base::Fail(Code::kCorrupt, fmt::format("layer_types: expected a list of {} texts, found "
                                                  "{}",
                                                  config.layers, ToText(types).substr(0, 80)));
  }
  for (const Json& type : *types.array()) {
    const bool is_windowed = type.string() != nullptr && *type.string() == "sliding_attention";
    if (!is_windowed && (type.string() == nullptr || *type.string() != "full_attention")) {
      return base::Fail(Code::kIncompatible,
                        fmt::format("layer_types: served are full_attention and "
                                    "sliding_attention, found {}",
                                    ToText(type).substr(0, 80)));
    }
    config.windowed_layers.push_back(is_windowed);
  }
  return {};
}

}  // namespace

base::Status ReadQwenWindows(const Json& json, ModelConfig& config) {
  bool has_windows = false;
  SYNCLINE_TRY(ReadField(json, "use_sliding_window", has_windows));
  if (!has_windows) return {};
  if (json.Find("sliding_window") == nullptr) config.window = 4096;
  SYNCLINE_TRY(ReadField(json, "sliding_window", config.window));
  const Json* types = json.Find("layer_types");
  if (types != nullptr && !types->is_null()) return ReadLayerTypes(*types, config);
  std::uint32_t first = 28;
  SYNCLINE_TRY(ReadField(json, "max_window_layers", first));
  for (std::uint32_t i = 0; i < config.layers; ++i) config.windowed_layers.push_back(i >= first);
  return {};
}

}  // namespace syncline::model
