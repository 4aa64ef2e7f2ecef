// Llama 1 to 3.x, and models of the same make (SmolLM2): grouped-query attention, rotary embedding,
// RMS norm, SwiGLU.
#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

base::Status ReadLlama(const base::Json& json, ModelConfig& config) {
  SYNCLINE_TRY(ReadField(json, "attention_bias", config.qkv_bias));
  config.o_bias = config.qkv_bias;
  return ReadField(json, "mlp_bias", config.mlp_bias);
}

}  // namespace

extern const Architecture kLlama;
const Architecture kLlama = {"LlamaForCausalLM", ReadLlama, PlanGroupedLayer};

}  // namespace syncline::model
