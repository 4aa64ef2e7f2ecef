#include "serve/meta_info.h"

#include <span>

#include "payload/payload.h"

namespace syncline::serve {
namespace {

using base::Json;
using engine::Finish;
using engine::Logprobs;
using engine::TokenLogprob;

Json Number(std::uint64_t value) { return Json(value); }

// [logprob | null, id, text | null]
Json Triple(const TokenLogprob& entry, const text::Vocabulary* vocabulary) {
  return Json(
      Json::Array{entry.logprob ? Json(static_cast<double>(*entry.logprob)) : Json(),
                  Json(static_cast<std::int64_t>(entry.token)),
                  vocabulary == nullptr ? Json() : Json(TokenText(*vocabulary, entry.token))});
}

Json Triples(const std::vector<TokenLogprob>& entries, const text::Vocabulary* vocabulary) {
  Json::Array list;
  list.reserve(entries.size());
  for (const TokenLogprob& entry : entries) list.push_back(Triple(entry, vocabulary));
  return list;
}

// One list a position. A position without any is null.
Json Alternatives(const std::vector<std::vector<TokenLogprob>>& positions,
                  const text::Vocabulary* vocabulary) {
  Json::Array list;
  list.reserve(positions.size());
  for (const auto& position : positions) {
    list.push_back(position.empty() ? Json() : Triples(position, vocabulary));
  }
  return list;
}

void AddLogprobs(Json::Object& meta, const std::string& side, const Logprobs& logprobs,
                 const engine::LogprobParams& asked, const text::Vocabulary* vocabulary) {
  meta.emplace_back(side + "_token_logprobs", Triples(logprobs.tokens, vocabulary));
  if (asked.top > 0) {
    meta.emplace_back(side + "_top_logprobs", Alternatives(logprobs.top, vocabulary));
  }
  if (!asked.tokens.empty()) {
    meta.emplace_back(side + "_token_ids_logprobs", Alternatives(logprobs.chosen, vocabulary));
  }
}

}  // namespace

std::string TokenText(const text::Vocabulary& vocabulary, text::TokenId token) {
  std::string text = text::Decode(vocabulary, {token}, /*skip_special_tokens=*/false);
  if (vocabulary.strips_leading_space() && vocabulary.Bytes(token).starts_with(' ')) {
    text.insert(text.begin(), ' ');
  }
  return text;
}

Json FinishReason(const std::optional<Finish>& finish) {
  if (!finish) return {};
  switch (finish->kind) {
    case Finish::Kind::kStopToken:
      return Json(Json::Object{{"type", "stop"},
                               {"matched", static_cast<std::int64_t>(finish->matched_token)}});
    case Finish::Kind::kStopString:
      return Json(Json::Object{{"type", "stop"}, {"matched", finish->matched_string}});
    case Finish::Kind::kLength:
      return Json(Json::Object{{"type", "length"}, {"length", Number(finish->length)}});
    case Finish::Kind::kAbort:
      break;
  }
  const int status = finish->http_status;
  return Json(Json::Object{
      {"type", "abort"},
      {"message", finish->message},
      {"status_code", status == 0 ? Json() : Json(static_cast<std::int64_t>(status))},
      {"err_type", status == 0 ? Json() : Json(status < 500 ? "BadRequestError" : "ServerError")}});
}

Json MetaInfo(const Completion& result, const engine::LogprobParams& asked,
              const text::Vocabulary* vocabulary) {
  Json::Object meta = {{"id", result.id},
                       {"finish_reason", FinishReason(result.finish)},
                       {"prompt_tokens", Number(result.prompt_tokens)},
                       {"completion_tokens", Number(result.tokens.size())},
                       {"cached_tokens", Number(result.cached_tokens)},
                       {"reasoning_tokens", Number(0)},
                       {"num_retractions", Number(result.retractions)},
                       {"weight_version", result.weight_version}};
  if (result.finish) {
    meta.emplace_back("weight_versions", SpansJson(result.weight_versions));
    if (!result.prefill_weight_versions.empty()) {
      meta.emplace_back("prefill_weight_versions", SpansJson(result.prefill_weight_versions));
    }
    meta.emplace_back("e2e_latency", result.seconds);
    if (result.asked_experts) {
      meta.emplace_back("routed_experts",
                        payload::EncodeBase64(std::as_bytes(std::span(result.experts))));
    }
  }
  if (asked.enabled) {
    AddLogprobs(meta, "input", result.input.value_or(Logprobs()), asked, vocabulary);
    AddLogprobs(meta, "output", result.output, asked, vocabulary);
  }
  return meta;
}

}  // namespace syncline::serve
