// Mistral 7B and its kin: Llama whose tokens may see only the last `sliding_window` tokens.
#include "model/architecture.h"
#include "model/json_fields.h"

namespace syncline::model {
namespace {

base::Status ReadMistral(const base::Json& json, ModelConfig& config) {
  // A null means none, a field that is not there the first model's window.
  if (json.Find("sliding_window") == nullptr) config.window = 4096;
  return ReadField(json, "sliding_window", config.window);
}

}  // namespace

extern const Architecture kMistral;
const Architecture kMistral = {"MistralForCausalLM", ReadMistral, PlanGroupedLayer};

}  // namespace syncline::model
