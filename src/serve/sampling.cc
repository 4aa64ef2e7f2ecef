#include "serve/sampling.h"

#include <fmt/format.h>

namespace syncline::serve {
namespace {

using base::Json;
using engine::SamplingParams;
using engine::TokenId;

constexpr std::string_view kUnconstrained = "is not supported: output cannot be constrained";

// A string or a list of strings.
void ReadStop(Fields& fields, std::vector<std::string>& stop) {
  const Json* found = fields.Find("stop");
  if (found == nullptr) return;
  if (found->string() != nullptr) {
    stop = {*found->string()};
  } else {
    fields.Read("stop", stop);
  }
}

// {"token id": bias}
void ReadLogitBias(Fields& fields, std::map<TokenId, double>& biases) {
  const Json* found = fields.Find("logit_bias");
  if (found == nullptr) return;
  if (found->object() == nullptr) {
    return fields.Refuse("logit_bias", "expected an object, got " + Describe(*found));
  }
  for (const auto& [key, value] : *found->object()) {
    TokenId token = 0;
    double bias = 0;
    if (const Fault fault = ReadValue(Json(key), token)) {
      return fields.Refuse("logit_bias", fmt::format("key {}: {}", Describe(Json(key)), *fault));
    }
    if (const Fault fault = ReadValue(value, bias)) {
      return fields.Refuse("logit_bias", fmt::format("{}: {}", key, *fault));
    }
    biases[token] = bias;
  }
}

void ReadSamples(Fields& fields, std::uint32_t& samples) {
  fields.Read("n", samples);
  if (samples < 1 || samples > kMaxSamples) {
    fields.Refuse("n",
                  fmt::format("expected an integer from 1 to {}, got {}", kMaxSamples, samples));
  }
}

// What both spellings have under the same names.
void ReadShared(Fields& fields, SamplingParams& params, std::uint32_t& samples) {
  fields.Read("temperature", params.temperature);
  fields.Read("top_p", params.top_p);
  fields.Read("top_k", params.top_k);
  fields.Read("min_p", params.min_p);
  fields.Read("frequency_penalty", params.frequency_penalty);
  fields.Read("presence_penalty", params.presence_penalty);
  fields.Read("repetition_penalty", params.repetition_penalty);
  fields.Read("stop_token_ids", params.stop_token_ids);
  fields.Read("ignore_eos", params.ignore_eos);
  fields.Read("skip_special_tokens", params.skip_special_tokens);
  fields.Read("no_stop_trim", params.no_stop_trim);
  fields.Read("sampling_seed", params.seed);
  fields.Read("seed", params.seed);
  ReadStop(fields, params.stop);
  ReadLogitBias(fields, params.logit_bias);
  ReadSamples(fields, samples);
  for (const char* name : {"regex", "ebnf", "json_schema", "structural_tag"}) {
    fields.Unsupported(name, kUnconstrained);
  }
  fields.Unsupported("stop_regex");
  fields.Unsupported("custom_params");
}

}  // namespace

void ReadSampling(Fields& fields, SamplingParams& params, std::uint32_t& samples) {
  ReadShared(fields, params, samples);
  fields.Read("max_new_tokens", params.max_new_tokens);
  fields.Read("min_new_tokens", params.min_new_tokens);
}

void ReadOpenAiSampling(Fields& fields, SamplingParams& params, std::uint32_t& samples) {
  ReadShared(fields, params, samples);
  fields.Read("min_tokens", params.min_new_tokens);
  const Json* format = fields.Find("response_format");
  const Json* type = format == nullptr ? nullptr : format->Find("type");
  if (format != nullptr &&
      (type == nullptr || type->string() == nullptr || *type->string() != "text")) {
    fields.Refuse("response_format", kUnconstrained);
  }
  for (const char* name : {"lora_path", "return_hidden_states", "custom_logit_processor"}) {
    fields.Unsupported(name);
  }
}

}  // namespace syncline::serve
