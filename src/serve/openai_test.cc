// The /v1 routes over an engine that answers as the test says.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Json;
using engine::Finish;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kHello = R"("messages":[{"role":"user","content":"A"}])";

class OpenAiTest : public Scene {
 protected:
  engine::Request First() {
    const std::vector<engine::Request> all = engine_.requests();
    EXPECT_FALSE(all.empty());
    return all.empty() ? engine::Request() : all.front();
  }
  static std::string PromptText(const engine::Request& request) {
    return {request.input_ids.begin(), request.input_ids.end()};
  }
  http::Response Chat(const std::string& more = "") {
    return Post("/v1/chat/completions", fmt::format("{{{}{}}}", kHello, more));
  }
  void ExpectRefused(const char* path, const std::string& body, const std::string& part) {
    const http::Response reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(At(ParseReply(reply), "error.message"), HasSubstr(part)) << body;
    EXPECT_THAT(engine_.requests(), IsEmpty()) << body;
  }
};

TEST_F(OpenAiTest, Models) {
  const Json list = ParseReply(Get("/v1/models"));
  EXPECT_EQ(At(list, "object"), R"("list")");
  EXPECT_EQ(At(list, "data.0.id"), R"("tiny")");
  EXPECT_EQ(At(list, "data.0.object"), R"("model")");
  EXPECT_EQ(At(list, "data.0.max_model_len"), "64");
  EXPECT_EQ(At(ParseReply(Get("/v1/models/tiny")), "id"), R"("tiny")");
  const http::Response other = Get("/v1/models/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(At(ParseReply(other), "error.message"), HasSubstr("other"));
}

TEST_F(OpenAiTest, Chat) {
  const http::Response reply = Chat(R"(,"model":"whatever","max_tokens":2,"user":"me")");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = ParseReply(reply);
  EXPECT_EQ(PromptText(First()), "user:A;assistant:");
  EXPECT_EQ(At(json, "object"), R"("chat.completion")");
  EXPECT_EQ(At(json, "model"), R"("tiny")");
  EXPECT_THAT(At(json, "id"), HasSubstr("chatcmpl-"));
  EXPECT_EQ(At(json, "choices.0.index"), "0");
  EXPECT_EQ(At(json, "choices.0.message.role"), R"("assistant")");
  EXPECT_EQ(At(json, "choices.0.message.content"), R"("<0><1>")");
  EXPECT_EQ(At(json, "choices.0.finish_reason"), R"("length")");
  EXPECT_EQ(At(json, "choices.0.logprobs"), "null");
  EXPECT_EQ(At(json, "usage.prompt_tokens"), "17");
  EXPECT_EQ(At(json, "usage.completion_tokens"), "2");
  EXPECT_EQ(At(json, "usage.total_tokens"), "19");
  EXPECT_EQ(At(json, "metadata.weight_version"), R"("7")");
  EXPECT_EQ(At(json, "metadata.weight_versions"), R"([{"version":"7","start":0,"end":2}])");
  EXPECT_EQ(At(json, "metadata.prefill_weight_versions.0.version"), R"("7")");
}

TEST_F(OpenAiTest, EverySamplingParameterReachesTheEngine) {
  Chat(R"(,"max_completion_tokens":4,"max_tokens":9,"temperature":0.5,"top_p":0.25,"n":1,
      "stop":"x","seed":3,"presence_penalty":0.5,"frequency_penalty":-0.25,
      "logit_bias":{"7":1.5},"top_k":5,"min_p":0.125,"repetition_penalty":1.25,"ignore_eos":true,
      "min_tokens":2,"stop_token_ids":[9],"skip_special_tokens":false,"rid":"mine",
      "response_format":{"type":"text"},"store":false,"tool_choice":"auto")");
  const engine::Request request = First();
  EXPECT_EQ(request.id, "mine");
  EXPECT_EQ(request.sampling.max_new_tokens, 4U);
  EXPECT_EQ(request.sampling.min_new_tokens, 2U);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_THAT(request.sampling.stop, ElementsAre("x"));
  EXPECT_EQ(request.sampling.seed, 3U);
  EXPECT_EQ(request.sampling.presence_penalty, 0.5);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.25);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair(7, 1.5)));
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.min_p, 0.125);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.25);
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_THAT(request.sampling.stop_token_ids, ElementsAre(9));
  EXPECT_FALSE(request.sampling.skip_special_tokens);
}

TEST_F(OpenAiTest, AChatWithoutALimitMayFillTheContext) {
  Chat();
  EXPECT_EQ(First().sampling.max_new_tokens, 64U - 17U);
  EXPECT_EQ(First().sampling.temperature, 1.0);
}

TEST_F(OpenAiTest, ContentInPartsIsJoined) {
  Post("/v1/chat/completions", R"({"messages":[{"role":"system","content":
      [{"type":"text","text":"A"},{"type":"text","text":"B"}]},
      {"role":"assistant","content":null}],"max_tokens":1})");
  EXPECT_EQ(PromptText(First()), "system:AB;assistant:;assistant:");
}

TEST_F(OpenAiTest, WhatTheTemplateIsGiven) {
  const char* tools = R"([{"type":"function","function":{"name":"f"}}])";
  const auto options = [&](const std::string& more) {
    Chat(R"(,"max_tokens":1,)" + more);
    return ToText(tokenizer_.last_options);
  };
  EXPECT_EQ(options(R"("tools":)" + std::string(tools)),
            R"({"add_generation_prompt":true,"tools":)" + std::string(tools) + "}");
  EXPECT_EQ(options(R"("tool_choice":"none","tools":)" + std::string(tools)),
            R"({"add_generation_prompt":true})");
  EXPECT_EQ(options(R"("chat_template_kwargs":{"thinking":false,"add_generation_prompt":false})"),
            R"({"add_generation_prompt":true,"thinking":false})");
  EXPECT_EQ(options(R"("add_generation_prompt":false,"tools":[])"),
            R"({"add_generation_prompt":false})");
}

TEST_F(OpenAiTest, WhatTheTemplateRefusesIsA400) {
  tokenizer_.fault = base::Error{base::Code::kInvalidArgument, "roles must alternate"};
  const http::Response reply = Chat();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(ParseReply(reply), "error.message"), R"("roles must alternate")");
}

TEST_F(OpenAiTest, ChatLogprobs) {
  const Json json = ParseReply(Chat(R"(,"max_tokens":2,"logprobs":true,"top_logprobs":2)"));
  EXPECT_EQ(At(json, "choices.0.logprobs.content.1.token"), R"("<1>")");
  EXPECT_EQ(At(json, "choices.0.logprobs.content.1.logprob"), "-0.125");
  EXPECT_EQ(At(json, "choices.0.logprobs.content.1.bytes"), "[60,49,62]");
  EXPECT_EQ(At(json, "choices.0.logprobs.content.1.top_logprobs.1.token"), R"("<2>")");
  EXPECT_EQ(At(json, "choices.0.logprobs.content.1.top_logprobs.1.logprob"), "-0.25");
  EXPECT_EQ(First().logprobs.start, -1);
}

TEST_F(OpenAiTest, SeveralChoices) {
  const Json json = ParseReply(Chat(R"(,"max_tokens":1,"n":2,"rid":"r")"));
  EXPECT_EQ(At(json, "id"), R"("r")");
  EXPECT_EQ(At(json, "choices.1.index"), "1");
  EXPECT_EQ(At(json, "choices.2"), "-");
  EXPECT_EQ(At(json, "usage.prompt_tokens"), "17");  // once
  EXPECT_EQ(At(json, "usage.completion_tokens"), "2");
}

TEST_F(OpenAiTest, AChatStream) {
  const auto exchange = Start("POST", "/v1/chat/completions",
                              fmt::format(R"({{{},"max_tokens":2,"stream":true,"logprobs":true,
                "stream_options":{{"include_usage":true}}}})",
                                          kHello));
  EXPECT_EQ(exchange->Wait().content_type, "text/event-stream");
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 5U);
  const Json begin = MustParse(events[0]);
  EXPECT_EQ(At(begin, "object"), R"("chat.completion.chunk")");
  EXPECT_EQ(At(begin, "choices.0.delta"), R"({"role":"assistant","content":""})");
  EXPECT_EQ(At(begin, "usage"), "null");
  const Json first = MustParse(events[1]);
  EXPECT_EQ(At(first, "choices.0.delta"), R"({"content":"<0>"})");
  EXPECT_EQ(At(first, "choices.0.finish_reason"), "null");
  EXPECT_EQ(At(first, "choices.0.logprobs.content.0.token"), R"("<0>")");
  EXPECT_EQ(At(first, "id"), At(begin, "id"));
  const Json last = MustParse(events[2]);
  EXPECT_EQ(At(last, "choices.0.delta"), R"({"content":"<1>"})");  // not again what was sent
  EXPECT_EQ(At(last, "choices.0.finish_reason"), R"("length")");
  EXPECT_EQ(At(last, "metadata.weight_version"), R"("7")");
  const Json usage = MustParse(events[3]);
  EXPECT_EQ(At(usage, "choices"), "[]");
  EXPECT_EQ(At(usage, "usage.completion_tokens"), "2");
  EXPECT_EQ(events[4], "[DONE]");
}

TEST_F(OpenAiTest, AStreamThatFailsSaysSo) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/v1/chat/completions",
                              fmt::format(R"({{{},"stream":true,"rid":"a"}})", kHello));
  Settle();
  Settle();  // the tokens came in between
  while (engine_.running() == 0) Settle();
  engine_.Emit("a",
               LastEvent({.kind = Finish::Kind::kAbort, .message = "bad", .http_status = 500}));
  exchange->Wait();
  const std::vector<std::string> events = exchange->events();
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(At(MustParse(events[events.size() - 2]), "error.message"), R"("bad")");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(OpenAiTest, StopIsOneReasonWhateverWasMatched) {
  engine_.hold = true;
  for (const auto& [finish, name] : std::vector<std::pair<Finish, const char*>>{
           {{.kind = Finish::Kind::kStopToken, .matched_token = 4}, R"("stop")"},
           {{.kind = Finish::Kind::kStopString, .matched_string = "x"}, R"("stop")"},
           {{.kind = Finish::Kind::kAbort, .message = "m"}, R"("abort")"}}) {
    const auto exchange = Start("POST", "/v1/completions", R"({"prompt":[1],"rid":"a"})");
    Settle();
    engine_.Emit("a", LastEvent(finish, {9}, "t"));
    EXPECT_EQ(At(ParseReply(exchange->Wait()), "choices.0.finish_reason"), name);
  }
}

TEST_F(OpenAiTest, TheIdOfAReplyAbortsAllItsChoices) {
  engine_.hold = true;
  const auto completion = Start("POST", "/v1/completions", R"({"prompt":[1],"n":2,"rid":"a"})");
  Post("/abort_request", R"({"rid":"a"})");
  EXPECT_EQ(At(ParseReply(completion->Wait()), "choices.1.finish_reason"), R"("abort")");
  const auto chat =
      Start("POST", "/v1/chat/completions", fmt::format(R"({{{},"n":2,"rid":"b"}})", kHello));
  while (engine_.running() < 2) Settle();
  Post("/abort_request", R"({"rid":"b"})");
  EXPECT_EQ(At(ParseReply(chat->Wait()), "choices.1.finish_reason"), R"("abort")");
}

TEST_F(OpenAiTest, CompletionsOfEveryKindOfPrompt) {
  for (const auto& [prompt, choices, tokens] :
       std::vector<std::tuple<const char*, const char*, const char*>>{
           {R"("AB")", "0", "2"},
           {R"(["AB","C"])", "1", "3"},
           {"[65,66]", "0", "2"},
           {"[[65],[66,67]]", "1", "3"}}) {
    const http::Response reply =
        Post("/v1/completions", fmt::format(R"({{"prompt":{},"max_tokens":1}})", prompt));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = ParseReply(reply);
    const Json::Array& list = *json.Find("choices")->array();
    EXPECT_EQ(At(list.back(), "index"), choices) << prompt;
    EXPECT_EQ(At(json, "usage.prompt_tokens"), tokens) << prompt;
    EXPECT_EQ(At(json, "choices.0.text"), R"("<0>")");
    EXPECT_EQ(At(json, "object"), R"("text_completion")");
  }
}

TEST_F(OpenAiTest, CompletionsHaveOpenAisDefaultLength) {
  Post("/v1/completions", R"({"prompt":[1]})");
  EXPECT_EQ(First().sampling.max_new_tokens, 16U);
}

TEST_F(OpenAiTest, SamplesOfSeveralPrompts) {
  const Json json = ParseReply(
      Post("/v1/completions", R"({"prompt":[[65],[66]],"n":2,"max_tokens":1,"echo":true})"));
  EXPECT_EQ(At(json, "choices.1.text"), R"("A<0>")");
  EXPECT_EQ(At(json, "choices.2.text"), R"("B<0>")");
  EXPECT_EQ(At(json, "choices.3.index"), "3");
  EXPECT_EQ(At(json, "usage.prompt_tokens"), "2");
}

TEST_F(OpenAiTest, CompletionLogprobs) {
  const Json json =
      ParseReply(Post("/v1/completions", R"({"prompt":[1],"max_tokens":2,"logprobs":2})"));
  const std::string logprobs = At(json, "choices.0.logprobs");
  EXPECT_EQ(logprobs, R"({"tokens":["<0>","<1>"],"token_logprobs":[0,-0.125],"top_logprobs":)"
                      R"([{"<0>":0,"<1>":-0.125},{"<1>":-0.125,"<2>":-0.25}],)"
                      R"("text_offset":[0,3]})");
}

TEST_F(OpenAiTest, EchoWithLogprobsScoresThePrompt) {
  const Json json = ParseReply(
      Post("/v1/completions", R"({"prompt":"AB","max_tokens":1,"logprobs":0,"echo":true})"));
  EXPECT_EQ(First().logprobs.start, 0);
  EXPECT_EQ(At(json, "choices.0.text"), R"("AB<0>")");
  EXPECT_EQ(At(json, "choices.0.logprobs.tokens"), R"(["A","B","<0>"])");
  EXPECT_EQ(At(json, "choices.0.logprobs.token_logprobs"), "[null,-0.5,0]");
  EXPECT_EQ(At(json, "choices.0.logprobs.text_offset"), "[0,1,2]");
}

TEST_F(OpenAiTest, ACompletionStream) {
  const auto exchange = Start("POST", "/v1/completions",
                              R"({"prompt":"A","max_tokens":2,"stream":true,"logprobs":0,
                                  "echo":true,"stream_options":{"include_usage":true}})");
  exchange->Wait();
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(At(MustParse(events[0]), "choices.0.text"), R"("A<0>")");
  EXPECT_EQ(At(MustParse(events[1]), "choices.0.text"), R"("<1>")");
  EXPECT_EQ(At(MustParse(events[1]), "choices.0.logprobs.text_offset"), "[4]");
  EXPECT_EQ(At(MustParse(events[1]), "choices.0.finish_reason"), R"("length")");
  EXPECT_EQ(At(MustParse(events[2]), "usage.total_tokens"), "3");
  EXPECT_EQ(events[3], "[DONE]");
}

TEST_F(OpenAiTest, BadRequestsNameTheField) {
  const char* chat = "/v1/chat/completions";
  ExpectRefused(chat, "{}", "messages: is required");
  ExpectRefused(chat, R"({"messages":[]})", "messages: expected a list of at least one");
  ExpectRefused(chat, R"({"messages":["x"]})", "messages[0].role");
  ExpectRefused(chat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
                "messages[0].content: part 0");
  ExpectRefused(chat, R"({"messages":[{"role":"user","content":5}]})", "messages[0].content");
  for (const auto& [field, part] : std::vector<std::pair<const char*, const char*>>{
           {R"("tool_choice":"required")", "tool_choice: expected"},
           {R"("tool_choice":{"type":"function"})", "tool_choice: expected"},
           {R"("response_format":{"type":"json_object"})", "response_format: is not supported"},
           {R"("response_format":{})", "response_format: is not supported"},
           {R"("top_logprobs":2)", "top_logprobs: needs logprobs"},
           {R"("chat_template_kwargs":[])", "chat_template_kwargs: expected an object"},
           {R"("stream_options":{"include_usage":"x"})", "stream_options.include_usage"},
           {R"("n":0)", "n: expected"},
           {R"("continue_final_message":true)", "continue_final_message: is not supported"},
           {R"("lora_path":"a")", "lora_path: is not supported"}}) {
    ExpectRefused(chat, fmt::format("{{{},{}}}", kHello, field), part);
  }
  ExpectRefused("/v1/completions", "{}", "prompt: is required");
  ExpectRefused("/v1/completions", R"({"prompt":[]})", "prompt: the list is empty");
  ExpectRefused("/v1/completions", R"({"prompt":"A","suffix":"x"})", "suffix: is not supported");
  ExpectRefused("/v1/completions", R"({"prompt":"A","best_of":3})", "best_of: is not supported");
}

TEST_F(OpenAiTest, OnlyJsonIsTaken) {
  const std::string body = R"({"prompt":[1],"max_tokens":1})";
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded"}) {
    const http::Response reply =
        Start("POST", "/v1/completions", body, {{"content-type", type}})->Wait();
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr(type));
  }
  EXPECT_EQ(Start("POST", "/v1/completions", body, {})->Wait().status, 400);
  EXPECT_EQ(
      Start("POST", "/v1/completions", body, {{"CONTENT-TYPE", "application/json; charset=utf-8"}})
          ->Wait()
          .status,
      200);
}

}  // namespace
}  // namespace syncline::serve
