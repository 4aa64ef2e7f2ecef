// POST /generate.
#include <optional>

#include "serve/call.h"
#include "serve/generate_request.h"
#include "serve/meta_info.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;

class GeneratePresenter : public Presenter {
 public:
  GeneratePresenter(const text::Vocabulary& vocabulary, const GenerateRequest& request)
      : vocabulary_(request.text_in_logprobs ? &vocabulary : nullptr), list_(request.list) {
    for (const PromptItem& item : request.items) {
      asked_.insert(asked_.end(), item.samples, item.logprobs);
    }
  }

  Json Whole(const std::vector<Completion>& results) override {
    if (!list_) return Show(results.front(), 0);
    Json::Array list;
    list.reserve(results.size());
    for (std::size_t i = 0; i < results.size(); ++i) list.emplace_back(Show(results[i], i));
    return list;
  }

  std::vector<Json> Chunk(const Completion& result, std::size_t index,
                          const engine::Event& event) override {
    if (event.tokens.empty() && event.text.empty() && !event.finish) return {};
    Json::Object shown = Show(result, index);
    if (list_) shown.emplace_back("index", static_cast<std::uint64_t>(index));
    return {Json(std::move(shown))};
  }

 private:
  Json::Object Show(const Completion& result, std::size_t index) const {
    Json::Array ids;
    ids.reserve(result.tokens.size());
    for (const engine::TokenId token : result.tokens) {
      ids.emplace_back(static_cast<std::int64_t>(token));
    }
    return {{"text", result.text},
            {"output_ids", std::move(ids)},
            {"meta_info", MetaInfo(result, asked_[index], vocabulary_)}};
  }

  const text::Vocabulary* vocabulary_;
  bool list_;
  std::vector<engine::LogprobParams> asked_;  // by result
};

void Generate(Front& front, const RequestPtr& http_request, const ExchangePtr& exchange) {
  const base::Result<Json> body = ParseBody(*http_request);
  if (!body) return exchange->Send(InvalidRequest(ErrorStyle::kSglang, body.error().message));
  base::Result<GenerateRequest> read = ReadGenerateRequest(*body);
  if (!read) return exchange->Send(InvalidRequest(ErrorStyle::kSglang, read.error().message));
  const auto request = std::make_shared<GenerateRequest>(*std::move(read));
  const auto call = Call::Create(front, exchange,
                                 std::make_unique<GeneratePresenter>(front.vocabulary(), *request),
                                 {.stream = request->stream, .group = request->group});
  WithTokens(front, request->texts, request->input_ids,
             [&front, call, request](base::Result<Prompts> prompts) {
               if (!prompts) return call->Fail(prompts.error());
               base::Result<std::vector<engine::Request>> requests =
                   ExpandSamples(front, request->items, *prompts);
               if (!requests) return call->Fail(requests.error());
               call->Run(*std::move(requests));
             });
}

}  // namespace

void AddGenerateRoute(Router& router, Front& front) {
  router.Add({.methods = {"POST", "PUT"},
              .path = "/generate",
              .level = Level::kNormal,
              .handler = [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                Generate(front, request, exchange);
              }});
}

}  // namespace syncline::serve
