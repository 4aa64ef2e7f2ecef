// POST /v1/completions.
#include <fmt/format.h>

#include <utility>

#include "serve/call.h"
#include "serve/openai_logprobs.h"
#include "serve/openai_reply.h"
#include "serve/openai_request.h"
#include "serve/openai_routes.h"

namespace syncline::serve {
namespace {

using base::Json;

constexpr std::uint32_t kDefaultMaxTokens = 16;  // OpenAI's

struct CompletionRequest {
  OpenAiOptions options;
  std::vector<std::string> texts;  // the prompts: these,
  Prompts ids;                     // or these
  bool echo = false;

  std::size_t count() const { return texts.empty() ? ids.size() : texts.size(); }
};

// A string, a list of strings, a list of ids, or a list of lists of ids.
void ReadPrompt(Fields& fields, CompletionRequest& request) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Refuse("prompt", "is required");
  const Json::Array* list = prompt->array();
  if (list == nullptr) return fields.Read("prompt", request.texts.emplace_back());
  if (list->empty()) return fields.Refuse("prompt", "the list is empty");
  if (list->front().string() != nullptr) return fields.Read("prompt", request.texts);
  if (list->front().array() != nullptr) return fields.Read("prompt", request.ids);
  fields.Read("prompt", request.ids.emplace_back());
}

base::Result<CompletionRequest> ReadCompletionRequest(const Json& body) {
  CompletionRequest request;
  Fields fields(body);
  ReadPrompt(fields, request);
  ReadOpenAiOptions(fields, request.options);
  fields.Read("echo", request.echo);
  fields.Unsupported("suffix");
  PromptItem& item = request.options.item;
  std::optional<std::uint32_t> best_of;
  fields.Read("best_of", best_of);
  if (best_of && *best_of != item.samples) {
    fields.Refuse("best_of", "is not supported: every sample is returned");
  }
  item.sampling.max_new_tokens = request.options.max_tokens.value_or(kDefaultMaxTokens);
  std::optional<std::uint32_t> top;
  fields.Read("logprobs", top);
  if (top) {
    item.logprobs = {.enabled = true, .start = request.echo ? 0 : -1, .top = *top};
  }
  SYNCLINE_TRY(fields.status());
  return request;
}

class CompletionPresenter : public Presenter {
 public:
  // `echoes`: by prompt, the text that stands before each completion; empty without echo.
  CompletionPresenter(const text::Vocabulary& vocabulary, OpenAiHead head, bool include_usage,
                      bool logprobs, std::vector<std::string> echoes, std::size_t results)
      : head_(std::move(head)),
        include_usage_(include_usage),
        logprobs_(logprobs),
        echoes_(std::move(echoes)),
        begun_(results, false),
        collected_(logprobs ? results : 0, CompletionLogprobs(vocabulary)) {}

  Json Whole(const std::vector<Completion>& results) override {
    Json::Array choices;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Completion& result = results[i];
      if (logprobs_ && result.input) collected_[i].Add(*result.input);
      if (logprobs_) collected_[i].Add(result.output);
      choices.emplace_back(Choice(i, Echo(i) + result.text, result));
    }
    Json::Object reply = head_.Object("text_completion", std::move(choices));
    reply.emplace_back("usage", Usage(results, head_.samples));
    reply.emplace_back("metadata", VersionMetadata(results.front()));
    return reply;
  }

  std::vector<Json> Chunk(const Completion& result, std::size_t index,
                          const engine::Event& event) override {
    if (event.tokens.empty() && event.text.empty() && !event.finish && !event.input_logprobs) {
      return {};
    }
    if (logprobs_ && event.input_logprobs) collected_[index].Add(*event.input_logprobs);
    if (logprobs_) collected_[index].Add(event.output_logprobs);
    const std::string before = begun_[index] ? "" : Echo(index);
    begun_[index] = true;
    Json::Object chunk = head_.Object(
        "text_completion", Json::Array{Json(Choice(index, before + event.text, result))});
    if (include_usage_) chunk.emplace_back("usage", nullptr);
    if (event.finish) chunk.emplace_back("metadata", VersionMetadata(result));
    return {Json(std::move(chunk))};
  }

  std::vector<Json> End(const std::vector<Completion>& results) override {
    if (!include_usage_) return {};
    Json::Object chunk = head_.Object("text_completion", {});
    chunk.emplace_back("usage", Usage(results, head_.samples));
    return {Json(std::move(chunk))};
  }

 private:
  std::string Echo(std::size_t index) const {
    return echoes_.empty() ? "" : echoes_[index / head_.samples];
  }

  Json::Object Choice(std::size_t index, std::string text, const Completion& result) {
    Json::Object choice = {{"index", std::uint64_t{index}},
                           {"text", std::move(text)},
                           {"logprobs", logprobs_ ? collected_[index].Take() : Json()}};
    AddFinish(choice, result);
    return choice;
  }

  OpenAiHead head_;
  bool include_usage_;
  bool logprobs_;
  std::vector<std::string> echoes_;
  std::vector<bool> begun_;                    // by result
  std::vector<CompletionLogprobs> collected_;  // by result, or empty
};

std::vector<std::string> Echoes(const Front& front, const CompletionRequest& request) {
  if (!request.echo || !request.texts.empty()) {
    return request.echo ? request.texts : std::vector<std::string>();
  }
  std::vector<std::string> echoes;
  for (const auto& ids : request.ids) {
    echoes.push_back(text::Decode(front.vocabulary(), ids, /*skip_special_tokens=*/false));
  }
  return echoes;
}

}  // namespace

void HandleCompletions(Front& front, const RequestPtr& http_request, const ExchangePtr& exchange) {
  const base::Result<Json> body = ParseOpenAiBody(*http_request);
  if (!body) return exchange->Send(InvalidRequest(ErrorStyle::kOpenAi, body.error().message));
  base::Result<CompletionRequest> read = ReadCompletionRequest(*body);
  if (!read) return exchange->Send(InvalidRequest(ErrorStyle::kOpenAi, read.error().message));
  const OpenAiOptions& options = read->options;
  const std::size_t count = read->count();
  const std::string id = options.item.id.empty() ? "cmpl-" + front.NewId() : options.item.id;
  std::vector<PromptItem> items(count, options.item);
  for (std::size_t i = 0; i < count; ++i)
    items[i].id = count == 1 ? id : fmt::format("{}_{}", id, i);
  const auto call = Call::Create(
      front, exchange,
      std::make_unique<CompletionPresenter>(
          front.vocabulary(), MakeHead(id, front.card().served_name, options.item.samples),
          options.include_usage, options.item.logprobs.enabled, Echoes(front, *read),
          count * options.item.samples),
      {.style = ErrorStyle::kOpenAi,
       .stream = options.stream,
       .group = count * options.item.samples > 1 ? id : ""});
  WithTokens(front, std::move(read->texts), std::move(read->ids),
             [&front, call, items = std::move(items)](const base::Result<Prompts>& prompts) {
               if (!prompts) return call->Fail(prompts.error());
               auto requests = ExpandSamples(front, items, *prompts);
               if (!requests) return call->Fail(requests.error());
               call->Run(*std::move(requests));
             });
}

}  // namespace syncline::serve
