// Qwen2 and Qwen2.5: Llama with biases of queries, keys and values.
#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

base::Status ReadQwen2(const base::Json& json, ModelConfig& config) {
  config.qkv_bias = true;
  bool windows = false;
  SYNCLINE_TRY(ReadField(json, "use_sliding_window", windows));
  if (!windows) return {};
  return base::Fail(base::Code::kIncompatible,
                    "use_sliding_window: windows of some layers only are not served");
}

}  // namespace

extern const Architecture kQwen2;
const Architecture kQwen2 = {"Qwen2ForCausalLM", ReadQwen2, PlanDenseLayer};

}  // namespace syncline::model
