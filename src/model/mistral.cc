// Mistral 7B and its kin: Llama whose tokens may see only the last `sliding_window` tokens.
#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

base::Status ReadMistral(const base::Json& json, ModelConfig& config) {
  return ReadField(json, "sliding_window", config.window);
}

}  // namespace

extern const Architecture kMistral;
const Architecture kMistral = {"MistralForCausalLM", ReadMistral, PlanDenseLayer};

}  // namespace syncline::model
