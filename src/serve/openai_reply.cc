#include "serve/openai_reply.h"

#include <chrono>

#include "serve/meta_info.h"

namespace syncline::serve {

using base::Json;
using engine::Finish;

Json::Object OpenAiHead::Object(std::string_view object, Json::Array choices) const {
  return {{"id", id},
          {"object", object},
          {"created", created},
          {"model", model},
          {"choices", std::move(choices)}};
}

OpenAiHead MakeHead(std::string id, std::string model, std::uint32_t samples) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = std::move(id),
          .model = std::move(model),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .samples = samples};
}

Json FinishName(const Completion& result) {
  if (!result.finish) return {};
  switch (result.finish->kind) {
    case Finish::Kind::kStopToken:
    case Finish::Kind::kStopString:
      return "stop";
    case Finish::Kind::kLength:
      return "length";
    case Finish::Kind::kAbort:
      return "abort";
  }
  return {};
}

Json Usage(const std::vector<Completion>& results, std::uint32_t samples) {
  std::uint64_t prompt = 0;
  std::uint64_t completion = 0;
  std::uint64_t cached = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    completion += results[i].tokens.size();
    if (i % samples != 0) continue;
    prompt += results[i].prompt_tokens;
    cached += results[i].cached_tokens;
  }
  return Json(
      Json::Object{{"prompt_tokens", prompt},
                   {"completion_tokens", completion},
                   {"total_tokens", prompt + completion},
                   {"prompt_tokens_details", Json(Json::Object{{"cached_tokens", cached}})}});
}

Json VersionMetadata(const Completion& result) {
  Json::Object metadata = {{"weight_version", result.weight_version},
                           {"weight_versions", SpansJson(result.weight_versions)}};
  if (!result.prefill_weight_versions.empty()) {
    metadata.emplace_back("prefill_weight_versions", SpansJson(result.prefill_weight_versions));
  }
  return Json(std::move(metadata));
}

void AddFinish(Json::Object& choice, const Completion& result) {
  choice.emplace_back("finish_reason", FinishName(result));
  if (!result.finish) return;
  const Json reason = FinishReason(result.finish);
  const Json* matched = reason.Find("matched");
  choice.emplace_back("matched_stop", matched == nullptr ? Json() : *matched);
  choice.emplace_back("weight_versions", SpansJson(result.weight_versions));
}

}  // namespace syncline::serve
