// POST /v1/chat/completions.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/call.h"
#include "serve/openai_logprobs.h"
#include "serve/openai_reply.h"
#include "serve/openai_request.h"
#include "serve/openai_routes.h"

namespace syncline::serve {
namespace {

using base::Json;

struct ChatRequest {
  OpenAiOptions options;
  Json messages;
  Json template_options;  // an object
};

// The text of a message's content; a list of text parts becomes one string, which every template
// takes.
Fault ReadContent(const Json& content, Json& out) {
  const Json::Array* parts = content.array();
  if (parts == nullptr) {
    if (content.string() == nullptr && !content.is_null()) {
      return "expected a string or a list of parts, got " + Describe(content);
    }
    out = content;
    return std::nullopt;
  }
  std::string text;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const Json* type = (*parts)[i].Find("type");
    const Json* part = (*parts)[i].Find("text");
    if (type == nullptr || type->string() == nullptr || *type->string() != "text" ||
        part == nullptr || part->string() == nullptr) {
      return fmt::format(
          "part {}: expected {{\"type\": \"text\", \"text\": …}}; other kinds are not "
          "supported",
          i);
    }
    text += *part->string();
  }
  out = Json(std::move(text));
  return std::nullopt;
}

void ReadMessages(Fields& fields, Json& messages) {
  const Json* found = fields.Find("messages");
  if (found == nullptr) return fields.Refuse("messages", "is required");
  if (found->array() == nullptr || found->array()->empty()) {
    return fields.Refuse("messages", "expected a list of at least one, got " + Describe(*found));
  }
  Json::Array read;
  for (std::size_t i = 0; i < found->array()->size(); ++i) {
    const Json& message = (*found->array())[i];
    const Json* role = message.Find("role");
    if (role == nullptr || role->string() == nullptr) {
      return fields.Refuse(fmt::format("messages[{}].role", i), "a string is required");
    }
    Json::Object members = *message.object();
    for (auto& [name, value] : members) {
      if (name != "content") continue;
      Json content;
      if (const Fault fault = ReadContent(value, content)) {
        return fields.Refuse(fmt::format("messages[{}].content", i), *fault);
      }
      value = std::move(content);
    }
    read.emplace_back(std::move(members));
  }
  messages = Json(std::move(read));
}

// Tools are shown to the model by its template; that one of them is called cannot be forced.
Json::Object ReadTemplateOptions(Fields& fields) {
  const Json* choice = fields.Find("tool_choice");
  const std::string* name = choice == nullptr ? nullptr : choice->string();
  if (choice != nullptr && (name == nullptr || (*name != "auto" && *name != "none"))) {
    fields.Refuse("tool_choice", "expected \"auto\" or \"none\", got " + Describe(*choice));
  }
  fields.Unsupported("continue_final_message");
  bool prompt = true;
  fields.Read("add_generation_prompt", prompt);
  Json::Object options = {{"add_generation_prompt", prompt}};
  const Json* tools = fields.Find("tools");
  if (tools != nullptr && !IsNothing(*tools) && (name == nullptr || *name != "none")) {
    options.emplace_back("tools", *tools);
  }
  if (const Json* more = fields.Find("chat_template_kwargs")) {
    if (more->object() == nullptr) {
      fields.Refuse("chat_template_kwargs", "expected an object, got " + Describe(*more));
      return options;
    }
    for (const auto& member : *more->object()) {
      const bool there = std::ranges::any_of(
          options, [&](const Json::Member& other) { return other.first == member.first; });
      if (!there) options.push_back(member);
    }
  }
  return options;
}

base::Result<ChatRequest> ReadChatRequest(const Json& body) {
  ChatRequest request;
  Fields fields(body);
  ReadMessages(fields, request.messages);
  ReadOpenAiOptions(fields, request.options);
  request.template_options = Json(ReadTemplateOptions(fields));
  engine::LogprobParams& logprobs = request.options.item.logprobs;
  fields.Read("logprobs", logprobs.enabled);
  fields.Read("top_logprobs", logprobs.top);
  if (logprobs.top > 0 && !logprobs.enabled) {
    fields.Refuse("top_logprobs", "needs logprobs: true");
  }
  SYNCLINE_TRY(fields.status());
  return request;
}

class ChatPresenter : public Presenter {
 public:
  ChatPresenter(const text::Vocabulary& vocabulary, OpenAiHead head, bool include_usage,
                bool logprobs)
      : vocabulary_(vocabulary),
        head_(std::move(head)),
        include_usage_(include_usage),
        logprobs_(logprobs) {}

  Json Whole(const std::vector<Completion>& results) override {
    Json::Array choices;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Completion& result = results[i];
      Json::Object choice = {
          {"index", std::uint64_t{i}},
          {"message", Json(Json::Object{
                          {"role", "assistant"}, {"content", result.text}, {"refusal", nullptr}})},
          {"logprobs", logprobs_ ? ChatLogprobs(result.output, vocabulary_) : Json()}};
      AddFinish(choice, result);
      choices.emplace_back(std::move(choice));
    }
    Json::Object reply = head_.Object("chat.completion", std::move(choices));
    reply.emplace_back("usage", Usage(results, head_.samples));
    reply.emplace_back("metadata", VersionMetadata(results.front()));
    return reply;
  }

  std::vector<Json> Begin(const std::vector<Completion>& results) override {
    std::vector<Json> chunks;
    chunks.reserve(results.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      chunks.push_back(Piece(results[i], i, {{"role", "assistant"}, {"content", ""}}, Json()));
    }
    return chunks;
  }

  std::vector<Json> Chunk(const Completion& result, std::size_t index,
                          const engine::Event& event) override {
    const bool has_logprobs = logprobs_ && !event.output_logprobs.tokens.empty();
    if (event.text.empty() && !has_logprobs && !event.finish) return {};
    Json::Object delta;
    if (!event.text.empty()) delta.emplace_back("content", event.text);
    return {Piece(result, index, std::move(delta),
                  has_logprobs ? ChatLogprobs(event.output_logprobs, vocabulary_) : Json())};
  }

  std::vector<Json> End(const std::vector<Completion>& results) override {
    if (!include_usage_) return {};
    Json::Object chunk = head_.Object("chat.completion.chunk", {});
    chunk.emplace_back("usage", Usage(results, head_.samples));
    return {Json(std::move(chunk))};
  }

 private:
  Json Piece(const Completion& result, std::size_t index, Json::Object delta, Json logprobs) const {
    Json::Object choice = {{"index", std::uint64_t{index}},
                           {"delta", std::move(delta)},
                           {"logprobs", std::move(logprobs)}};
    AddFinish(choice, result);
    Json::Object chunk =
        head_.Object("chat.completion.chunk", Json::Array{Json(std::move(choice))});
    if (include_usage_) chunk.emplace_back("usage", nullptr);
    if (result.finish) chunk.emplace_back("metadata", VersionMetadata(result));
    return chunk;
  }

  const text::Vocabulary& vocabulary_;
  OpenAiHead head_;
  bool include_usage_;
  bool logprobs_;
};

void RunChat(Front& front, Call& call, const OpenAiOptions& options,
             std::vector<text::TokenId> ids) {
  PromptItem item = options.item;
  // Without a limit the answer may fill the context.
  const std::uint32_t room = front.engine().max_context();
  const auto used = static_cast<std::uint32_t>(std::min<std::size_t>(ids.size(), room));
  item.sampling.max_new_tokens = options.max_tokens.value_or(std::max(room - used, 1U));
  auto requests = ExpandSamples(front, {item}, {std::move(ids)});
  if (!requests) return call.Fail(requests.error());
  call.Run(*std::move(requests));
}

}  // namespace

void HandleChat(Front& front, const RequestPtr& http_request, const ExchangePtr& exchange) {
  const base::Result<Json> body = ParseOpenAiBody(*http_request);
  if (!body) return exchange->Send(InvalidRequest(ErrorStyle::kOpenAi, body.error().message));
  base::Result<ChatRequest> read = ReadChatRequest(*body);
  if (!read) return exchange->Send(InvalidRequest(ErrorStyle::kOpenAi, read.error().message));
  OpenAiOptions options = read->options;
  if (options.item.id.empty()) options.item.id = "chatcmpl-" + front.NewId();
  const auto call =
      Call::Create(front, exchange,
                   std::make_unique<ChatPresenter>(
                       front.vocabulary(),
                       MakeHead(options.item.id, front.card().served_name, options.item.samples),
                       options.include_usage, options.item.logprobs.enabled),
                   {.style = ErrorStyle::kOpenAi,
                    .stream = options.stream,
                    .group = options.item.samples > 1 ? options.item.id : ""});
  const auto done = [&front, call, options](base::Result<text::ChatPrompt> prompt) {
    front.worker().Post([&front, call, options, prompt = std::move(prompt)]() mutable {
      if (!prompt) return call->Fail(prompt.error());
      RunChat(front, *call, options, std::move(prompt->tokens));
    });
  };
  if (front.tokenizer() == nullptr) return done(std::unexpected(NoTokenizer()));
  front.tokenizer()->ApplyChatTemplate(std::move(read->messages), std::move(read->template_options),
                                       done);
}

}  // namespace syncline::serve
