// Qwen3: Llama with an RMS norm of each query and key head; some layers may have a window.
#include "model/architecture.h"
#include "model/json_fields.h"
#include "model/qwen_windows.h"

namespace syncline::model {
namespace {

base::Status ReadQwen3(const base::Json& json, ModelConfig& config) {
  config.qk_norm = true;
  SYNCLINE_TRY(ReadField(json, "attention_bias", config.qkv_bias));
  config.o_bias = config.qkv_bias;
  if (json.Find("head_dim") == nullptr) config.head_size = 128;
  return ReadQwenWindows(json, config);
}

}  // namespace

extern const Architecture kQwen3;
const Architecture kQwen3 = {"Qwen3ForCausalLM", ReadQwen3, PlanGroupedLayer};

}  // namespace syncline::model
