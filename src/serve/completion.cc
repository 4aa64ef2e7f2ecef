#include "serve/completion.h"

namespace syncline::serve {
namespace {

using base::Json;

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void Completion::Add(const engine::Event& event) {
  Append(tokens, event.tokens);
  text += event.text;
  Append(output.tokens, event.output_logprobs.tokens);
  Append(output.top, event.output_logprobs.top);
  Append(output.chosen, event.output_logprobs.chosen);
  if (event.input_logprobs) input = event.input_logprobs;
  if (!event.weight_version.empty()) weight_version = event.weight_version;
  if (!event.finish) return;
  finish = event.finish;
  weight_versions = event.weight_versions;
  prefill_weight_versions = event.prefill_weight_versions;
  retractions = event.retractions;
  cached_tokens = event.cached_tokens;
  experts = event.experts;
}

Json SpansJson(const std::vector<engine::VersionSpan>& spans) {
  Json::Array list;
  list.reserve(spans.size());
  for (const engine::VersionSpan& span : spans) {
    list.emplace_back(Json::Object{{"version", span.version},
                                   {"start", static_cast<std::uint64_t>(span.start)},
                                   {"end", static_cast<std::uint64_t>(span.end)}});
  }
  return list;
}

}  // namespace syncline::serve
