// Qwen2 and Qwen2.5: Llama with biases of queries, keys and values; some layers may have a window.
#include "model/architecture.h"
#include "model/qwen_windows.h"

namespace syncline::model {
namespace {

base::Status ReadQwen2(const base::Json& json, ModelConfig& config) {
  config.qkv_bias = true;
  return ReadQwenWindows(json, config);
}

}  // namespace

extern const Architecture kQwen2;
const Architecture kQwen2 = {"Qwen2ForCausalLM", ReadQwen2, PlanGroupedLayer};

}  // namespace syncline::model
