// /generate over an engine that answers as the test says.
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

class GenerateTest : public Scene {
 protected:
  // The only request that reached the engine.
  engine::Request Only() {
    const std::vector<engine::Request> all = engine_.requests();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? engine::Request() : all.front();
  }
  void ExpectRefused(const std::string& body, const std::string& part) {
    const http::Response reply = Post("/generate", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(reply.body, HasSubstr(part)) << body;
    EXPECT_THAT(engine_.requests(), IsEmpty()) << body;
  }
};

TEST_F(GenerateTest, OnePromptOfIds) {
  const http::Response reply = Post(
      "/generate", R"({"input_ids":[5,6,7],"rid":"mine","sampling_params":{"max_new_tokens":3}})");
  EXPECT_EQ(reply.status, 200);
  const Json json = ParseReply(reply);
  EXPECT_EQ(At(json, "text"), R"("<0><1><2>")");
  EXPECT_EQ(At(json, "output_ids"), "[100,101,102]");
  EXPECT_EQ(At(json, "meta_info.id"), R"("mine")");
  EXPECT_EQ(At(json, "meta_info.finish_reason"), R"({"type":"length","length":3})");
  EXPECT_EQ(At(json, "meta_info.prompt_tokens"), "3");
  EXPECT_EQ(At(json, "meta_info.completion_tokens"), "3");
  EXPECT_EQ(At(json, "meta_info.cached_tokens"), "1");
  EXPECT_EQ(At(json, "meta_info.reasoning_tokens"), "0");
  EXPECT_EQ(At(json, "meta_info.num_retractions"), "0");
  EXPECT_EQ(At(json, "meta_info.weight_version"), R"("7")");
  EXPECT_EQ(At(json, "meta_info.weight_versions"), R"([{"version":"7","start":0,"end":3}])");
  EXPECT_EQ(At(json, "meta_info.prefill_weight_versions"),
            R"([{"version":"7","start":0,"end":3}])");
  EXPECT_NE(At(json, "meta_info.e2e_latency"), "-");
  EXPECT_EQ(At(json, "meta_info.output_token_logprobs"), "-");
  EXPECT_THAT(Only().input_ids, ElementsAre(5, 6, 7));
}

TEST_F(GenerateTest, PutIsTheSame) {
  EXPECT_EQ(Start("PUT", "/generate", R"({"input_ids":[5]})")->Wait().status, 200);
}

TEST_F(GenerateTest, EverySamplingParameterReachesTheEngine) {
  Post("/generate", R"({"input_ids":[1],"unknown":{"a":1},"sampling_params":{
    "max_new_tokens":"4","min_new_tokens":2,"temperature":0.5,"top_p":0.25,"top_k":9,"min_p":0.125,
    "frequency_penalty":0.75,"presence_penalty":-0.5,"repetition_penalty":1.5,
    "logit_bias":{"3":-100,"4":2.5},"stop":["a","b"],"stop_token_ids":[8,9],"ignore_eos":true,
    "skip_special_tokens":false,"no_stop_trim":true,"sampling_seed":11,
    "spaces_between_special_tokens":true,"json_schema":null,"n":1}})");
  const engine::SamplingParams params = Only().sampling;
  EXPECT_EQ(params.max_new_tokens, 4U);
  EXPECT_EQ(params.min_new_tokens, 2U);
  EXPECT_EQ(params.temperature, 0.5);
  EXPECT_EQ(params.top_p, 0.25);
  EXPECT_EQ(params.top_k, 9);
  EXPECT_EQ(params.min_p, 0.125);
  EXPECT_EQ(params.frequency_penalty, 0.75);
  EXPECT_EQ(params.presence_penalty, -0.5);
  EXPECT_EQ(params.repetition_penalty, 1.5);
  EXPECT_THAT(params.logit_bias, ElementsAre(std::pair(3, -100.0), std::pair(4, 2.5)));
  EXPECT_THAT(params.stop, ElementsAre("a", "b"));
  EXPECT_THAT(params.stop_token_ids, ElementsAre(8, 9));
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_FALSE(params.skip_special_tokens);
  EXPECT_TRUE(params.no_stop_trim);
  EXPECT_EQ(params.seed, 11U);
}

TEST_F(GenerateTest, DefaultsAreTheEngines) {
  Post("/generate", R"({"input_ids":[1],"sampling_params":{"temperature":null,"stop":"x"}})");
  const engine::SamplingParams params = Only().sampling;
  EXPECT_EQ(params.max_new_tokens, 128U);
  EXPECT_EQ(params.temperature, 1.0);
  EXPECT_EQ(params.seed, std::nullopt);
  EXPECT_THAT(params.stop, ElementsAre("x"));
  EXPECT_FALSE(Only().stream);
}

TEST_F(GenerateTest, TextGoesThroughTheTokenizerAndIdsDoNot) {
  Post("/generate", R"({"text":"AB","sampling_params":{"max_new_tokens":1}})");
  EXPECT_THAT(Only().input_ids, ElementsAre('A', 'B'));
  tokenizer_.fault = base::Error{base::Code::kUnavailable, "the helper died"};
  EXPECT_EQ(Post("/generate", R"({"input_ids":[4]})").status, 200);
  const http::Response reply = Post("/generate", R"({"text":"AB"})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("the helper died"));
}

TEST_F(GenerateTest, ABatchIsAnsweredInItsOrder) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[[1],[2,3]],"rid":"b",
      "sampling_params":[{"max_new_tokens":1},{"max_new_tokens":2}]})"));
  EXPECT_EQ(At(json, "0.meta_info.id"), R"("b_0")");
  EXPECT_EQ(At(json, "0.output_ids"), "[100]");
  EXPECT_EQ(At(json, "0.meta_info.prompt_tokens"), "1");
  EXPECT_EQ(At(json, "1.meta_info.id"), R"("b_1")");
  EXPECT_EQ(At(json, "1.output_ids"), "[100,101]");
  EXPECT_EQ(At(json, "1.meta_info.prompt_tokens"), "2");
  EXPECT_EQ(At(json, "2"), "-");
}

TEST_F(GenerateTest, ABatchOfTextsAndOfOne) {
  const Json texts = ParseReply(Post("/generate", R"({"text":["A","BC"],"rid":["x","y"]})"));
  EXPECT_EQ(At(texts, "1.meta_info.id"), R"("y")");
  EXPECT_EQ(At(texts, "1.meta_info.prompt_tokens"), "2");
  const Json one = ParseReply(Post("/generate", R"({"input_ids":[[9]]})"));
  EXPECT_NE(At(one, "0.meta_info"), "-");
}

TEST_F(GenerateTest, SeveralSamplesOfOnePrompt) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[9],"rid":"s",
      "sampling_params":{"n":3,"max_new_tokens":1,"seed":5}})"));
  std::vector<std::string> ids;
  std::vector<std::uint64_t> seeds;
  for (const engine::Request& request : engine_.requests()) {
    ids.push_back(request.id);
    seeds.push_back(request.sampling.seed.value_or(0));
  }
  EXPECT_THAT(ids, ElementsAre("s_0", "s_1", "s_2"));
  EXPECT_THAT(seeds, ElementsAre(5, 6, 7));
  EXPECT_EQ(At(json, "2.meta_info.id"), R"("s_2")");
  EXPECT_EQ(At(json, "3"), "-");
}

TEST_F(GenerateTest, SamplesOfABatchStandTogether) {
  Post("/generate", R"({"input_ids":[[1],[2]],"sampling_params":{"n":2,"max_new_tokens":1}})");
  std::vector<engine::TokenId> prompts;
  for (const engine::Request& request : engine_.requests()) {
    prompts.push_back(request.input_ids.front());
  }
  EXPECT_THAT(prompts, ElementsAre(1, 1, 2, 2));
}

TEST_F(GenerateTest, Logprobs) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[5,6],"return_logprob":true,
      "logprob_start_len":0,"top_logprobs_num":2,"token_ids_logprob":[9],
      "sampling_params":{"max_new_tokens":2}})"));
  EXPECT_EQ(At(json, "meta_info.input_token_logprobs"), "[[null,5,null],[-0.5,6,null]]");
  EXPECT_EQ(At(json, "meta_info.output_token_logprobs"), "[[0,100,null],[-0.125,101,null]]");
  EXPECT_EQ(At(json, "meta_info.input_top_logprobs"), "[null,[[-0.125,101,null]]]");
  EXPECT_EQ(At(json, "meta_info.output_top_logprobs.1"), "[[-0.125,101,null],[-0.25,102,null]]");
  EXPECT_EQ(At(json, "meta_info.output_token_ids_logprobs.0"), "[[-1.125,109,null]]");
  const engine::LogprobParams asked = Only().logprobs;
  EXPECT_EQ(asked.start, 0);
  EXPECT_EQ(asked.top, 2U);
  EXPECT_THAT(asked.tokens, ElementsAre(9));
}

TEST_F(GenerateTest, LogprobsWithTexts) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[65],"return_logprob":true,
      "return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":1}})"));
  EXPECT_EQ(At(json, "meta_info.output_token_logprobs"), R"([[0,100,"<0>"]])");
  EXPECT_EQ(At(json, "meta_info.input_token_logprobs"), "[]");
  EXPECT_EQ(At(json, "meta_info.output_top_logprobs"), "-");
}

TEST_F(GenerateTest, LogprobsByItem) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[[1],[2]],
      "return_logprob":[true,false],"top_logprobs_num":[1,0],"token_ids_logprob":[[3],null],
      "sampling_params":{"max_new_tokens":1}})"));
  EXPECT_NE(At(json, "0.meta_info.output_top_logprobs"), "-");
  EXPECT_EQ(At(json, "1.meta_info.output_token_logprobs"), "-");
}

TEST_F(GenerateTest, ScoringWithoutNewTokens) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[5,6],"return_logprob":true,
      "logprob_start_len":1,"sampling_params":{"max_new_tokens":0}})"));
  EXPECT_EQ(At(json, "output_ids"), "[]");
  EXPECT_EQ(At(json, "meta_info.input_token_logprobs"), "[[null,6,null]]");
  EXPECT_EQ(At(json, "meta_info.output_token_logprobs"), "[]");
}

TEST_F(GenerateTest, AStreamIsCumulative) {
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[5],"stream":true,
      "return_logprob":true,"sampling_params":{"max_new_tokens":3}})");
  const http::Response reply = exchange->Wait();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "text/event-stream");
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 4U);
  const Json first = MustParse(events[0]);
  EXPECT_EQ(At(first, "text"), R"("<0>")");
  EXPECT_EQ(At(first, "meta_info.finish_reason"), "null");
  EXPECT_EQ(At(first, "meta_info.weight_version"), R"("7")");
  EXPECT_EQ(At(first, "meta_info.weight_versions"), "-");  // known at the end
  EXPECT_EQ(At(first, "index"), "-");
  const Json second = MustParse(events[1]);
  EXPECT_EQ(At(second, "text"), R"("<0><1>")");
  EXPECT_EQ(At(second, "output_ids"), "[100,101]");
  EXPECT_EQ(At(second, "meta_info.completion_tokens"), "2");
  EXPECT_EQ(At(second, "meta_info.output_token_logprobs"), "[[0,100,null],[-0.125,101,null]]");
  const Json last = MustParse(events[2]);
  EXPECT_EQ(At(last, "meta_info.finish_reason.type"), R"("length")");
  EXPECT_EQ(At(last, "meta_info.weight_versions"), R"([{"version":"7","start":0,"end":3}])");
  EXPECT_EQ(events[3], "[DONE]");
}

TEST_F(GenerateTest, AStreamedBatchHasIndices) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[[1],[2]],"stream":true,
      "rid":["a","b"]})");
  Settle();
  engine_.Emit("b", {.tokens = {7}, .text = "x"});
  engine_.Emit("b", {});  // nothing to say
  engine_.Emit("a", LastEvent({.kind = Finish::Kind::kStopToken, .matched_token = 2}, {8}, "y"));
  engine_.Emit("b", LastEvent({.kind = Finish::Kind::kStopString, .matched_string = "z"}));
  exchange->Wait();
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(At(MustParse(events[0]), "index"), "1");
  EXPECT_EQ(At(MustParse(events[1]), "index"), "0");
  EXPECT_EQ(At(MustParse(events[1]), "meta_info.finish_reason"), R"({"type":"stop","matched":2})");
  EXPECT_EQ(At(MustParse(events[2]), "text"), R"("x")");
  EXPECT_EQ(At(MustParse(events[2]), "meta_info.finish_reason"),
            R"({"type":"stop","matched":"z"})");
  EXPECT_EQ(events[3], "[DONE]");
}

TEST_F(GenerateTest, AnAbortThatWasAskedForIsAReply) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[1],"rid":"a"})");
  Settle();
  engine_.Emit("a", {.tokens = {9}, .text = "part"});
  EXPECT_EQ(Post("/abort_request", R"({"rid":"a","abort_message":"enough"})").status, 200);
  const http::Response reply = exchange->Wait();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(At(ParseReply(reply), "text"), R"("part")");
  EXPECT_EQ(At(ParseReply(reply), "meta_info.finish_reason"),
            R"({"type":"abort","message":"enough","status_code":null,"err_type":null})");
}

TEST_F(GenerateTest, AnAbortWithAStatusIsThatStatus) {
  engine_.hold = true;
  for (const auto& [status, where] : std::vector<std::pair<int, const char*>>{
           {400, "error.message"}, {500, "message"}, {503, "message"}}) {
    const auto exchange = Start("POST", "/generate", R"({"input_ids":[[1],[2]],"rid":["a","b"]})");
    Settle();
    engine_.Emit(
        "a", LastEvent({.kind = Finish::Kind::kAbort, .message = "bad", .http_status = status}));
    const http::Response reply = exchange->Wait();
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(At(ParseReply(reply), where), R"("bad")");
    Settle();
    EXPECT_EQ(engine_.running(), 0U) << "the other request of the call goes on";
  }
}

TEST_F(GenerateTest, AStreamShowsAnAbortInItsEvent) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[1],"rid":"a","stream":true})");
  Settle();
  engine_.Emit("a",
               LastEvent({.kind = Finish::Kind::kAbort, .message = "bad", .http_status = 503}));
  exchange->Wait();
  const std::vector<std::string> events = exchange->events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(At(MustParse(events[0]), "meta_info.finish_reason.status_code"), "503");
  EXPECT_EQ(events[1], "[DONE]");
}

TEST_F(GenerateTest, AClientThatGoesAwayAbortsItsRequests) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[[1],[2]],"rid":["a","b"]})");
  Settle();
  engine_.Emit("a", LastEvent({.kind = Finish::Kind::kLength}));
  Settle();
  exchange->Disconnect();
  Settle();
  EXPECT_THAT(engine_.calls(), ElementsAre("abort b"));  // a is finished
  EXPECT_EQ(engine_.running(), 0U);
  EXPECT_FALSE(exchange->answered());
}

TEST_F(GenerateTest, AClientThatGoesAwayBeforeItsTokensAreThereIsForgotten) {
  std::promise<void> gate;
  tokenizer_.gate = gate.get_future().share();
  const auto gone = Start("POST", "/generate", R"({"text":"A"})");
  gone->Disconnect();
  Settle();
  gate.set_value();
  Post("/generate", R"({"text":"B","rid":"b"})");  // tokenized after it
  EXPECT_EQ(Only().id, "b");
}

TEST_F(GenerateTest, IdsInUse) {
  engine_.hold = true;
  const auto first = Start("POST", "/generate", R"({"input_ids":[1],"rid":"a"})");
  const auto batch = Start("POST", "/generate", R"({"input_ids":[[1],[2]],"rid":"g"})");
  const http::Response again = Post("/generate", R"({"input_ids":[1],"rid":"a"})");
  EXPECT_EQ(again.status, 400);
  EXPECT_THAT(At(ParseReply(again), "error.message"), HasSubstr("a"));
  EXPECT_EQ(Post("/generate", R"({"input_ids":[[1],[2]],"rid":"g"})").status, 400);
  EXPECT_EQ(Post("/generate", R"({"input_ids":[[1],[2]],"rid":["x","x"]})").status, 400);
  Settle();
  EXPECT_EQ(engine_.running(), 3U) << "a refused call left something running or ended another's";
  EXPECT_FALSE(first->answered());
  Post("/abort_request", R"({"rid":"g"})");  // still names the first batch
  EXPECT_EQ(batch->Wait().status, 200);
}

TEST_F(GenerateTest, ARefusalInTheMiddleOfABatchLeavesNothingRunning) {
  engine_.hold = true;
  engine_.refused_id = "b";
  const http::Response reply =
      Post("/generate", R"({"input_ids":[[1],[2]],"rid":["a","b"],"stream":true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(ParseReply(reply), "error.message"), R"("top_p: refused")");
  Settle();
  EXPECT_EQ(engine_.running(), 0U);
}

TEST_F(GenerateTest, AnIdCanBeUsedAgain) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Post("/generate", R"({"input_ids":[[1],[2]],"rid":"g"})").status, 200);
    EXPECT_EQ(Post("/generate", R"({"input_ids":[1],"rid":"a"})").status, 200);
  }
}

TEST_F(GenerateTest, WhatIsNotSupportedIsNamed) {
  for (const char* field : {"image_data", "audio_data", "video_data", "input_embeds", "lora_path",
                            "session_params", "return_hidden_states", "return_indexer_topk",
                            "custom_logit_processor", "bootstrap_host", "bootstrap_room"}) {
    ExpectRefused(fmt::format(R"({{"input_ids":[1],"{}":["x"]}})", field),
                  std::string(field) + ": is not supported");
  }
  ExpectRefused(R"({"input_ids":[1],"routed_dp_rank":1})", "routed_dp_rank: there is no data");
  for (const char* field : {"json_schema", "regex", "ebnf", "structural_tag", "stop_regex"}) {
    ExpectRefused(fmt::format(R"({{"input_ids":[1],"sampling_params":{{"{}":"x"}}}})", field),
                  std::string("sampling_params.") + field + ": is not supported");
  }
}

TEST_F(GenerateTest, RoutedExpertsAreBase64OfNumbersOf32BitsAndComeWithTheLastEvent) {
  const Json json = ParseReply(Post("/generate", R"({"input_ids":[[1],[2]],
      "return_routed_experts":[true,false],"routed_experts_start_len":1})"));
  EXPECT_EQ(At(json, "0.meta_info.routed_experts"), R"("AQAAAAIBAAA=")");
  EXPECT_EQ(At(json, "1.meta_info.routed_experts"), "-");
  ASSERT_EQ(engine_.requests().size(), 2U);
  EXPECT_EQ(engine_.requests()[0].experts_from, 1U);
  EXPECT_FALSE(engine_.requests()[1].experts_from);
  const auto stream =
      Start("POST", "/generate", R"({"input_ids":[1],"stream":true,"return_routed_experts":true})");
  stream->Wait();
  const std::vector<std::string> events = stream->events();
  EXPECT_THAT(events.front(), testing::Not(HasSubstr("routed_experts")));
  EXPECT_THAT(events[events.size() - 2], HasSubstr("AQAAAAIBAAA="));
}

TEST_F(GenerateTest, BothNamesOfAPartOfTheCacheDivideIt) {
  Post("/generate", R"({"input_ids":[[1],[2]],"extra_key":["a","b"],"cache_salt":"c"})");
  Post("/generate", R"({"input_ids":[1],"extra_key":"","cache_salt":null})");
  Post("/generate", R"({"input_ids":[1],"extra_key":"c","cache_salt":"a"})");
  Post("/v1/completions", R"({"prompt":[1],"cache_salt":"c","extra_key":"a"})");
  std::vector<std::string> parts;
  for (const engine::Request& request : engine_.requests()) {
    parts.push_back(request.cache_partition);
  }
  EXPECT_THAT(parts, testing::ElementsAre(R"(["a","c"])", R"(["b","c"])", "", R"(["c","a"])",
                                          R"(["a","c"])"));
}

TEST_F(GenerateTest, FieldsThatAskForNothingAreFine) {
  EXPECT_EQ(Post("/generate", R"({"input_ids":[1],"image_data":null,"lora_path":[null],
      "return_hidden_states":false,"return_routed_experts":false,"routed_experts_start_len":0,
      "session_params":{},"routed_dp_rank":0,"extra_key":"k","cache_salt":"s","stream":false,
      "token_ids_logprob":null,"sampling_params":null})")
                .status,
            200);
}

TEST_F(GenerateTest, BadRequestsNameTheField) {
  ExpectRefused("{}", "either text or input_ids");
  ExpectRefused(R"({"input_ids":[]})", "input_ids: the list is empty");
  ExpectRefused(R"({"text":[]})", "text: the list is empty");
  ExpectRefused(R"({"input_ids":[1,[2]]})", "input_ids: item 1: expected an integer, got a list");
  ExpectRefused(R"({"input_ids":[[1],2]})", "input_ids: item 1: expected a list, got 2");
  ExpectRefused(R"({"input_ids":[1],"sampling_params":[1]})",
                "sampling_params[0]: expected an object, got 1");
  ExpectRefused(R"({"input_ids":[1],"sampling_params":{"top_p":"x"}})",
                "sampling_params.top_p: expected a number, got ");
  ExpectRefused(R"({"input_ids":[[1],[2]],"sampling_params":[{},{"n":0}]})",
                "sampling_params[1].n: expected an integer from 1 to 4096, got 0");
  ExpectRefused(R"({"input_ids":[[1],[2]],"sampling_params":[{}]})",
                "sampling_params: expected one value or 2, got 1");
  ExpectRefused(R"({"input_ids":[[1],[2]],"rid":["a"]})", "rid: expected 2 ids, got 1");
  ExpectRefused(R"({"input_ids":[1],"sampling_params":{"logit_bias":{"x":1}}})", "logit_bias: key");
  ExpectRefused(R"({"input_ids":[1],"sampling_params":{"stop":[3]}})",
                "stop: item 0: expected a string, got 3");
  ExpectRefused("not json", "invalid JSON");
}

TEST_F(GenerateTest, ACallThatAsksForTooMuchIsRefused) {
  std::string prompts = "[[1]";
  for (int i = 0; i < 15; ++i) prompts += ",[1]";
  const http::Response reply =
      Post("/generate", R"({"input_ids":)" + prompts + R"(,[1]],"sampling_params":{"n":4096}})");
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.body, HasSubstr("16384 results"));
}

class NoTokenizerTest : public Scene {
  void SetUp() override { GetReady(/*tokenizer=*/false); }
};

TEST_F(NoTokenizerTest, TextsAreRefusedAndIdsAreFine) {
  EXPECT_EQ(Post("/generate", R"({"input_ids":[1]})").status, 200);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":[1]})").status, 200);
  for (const auto& [path, body] : std::vector<std::pair<const char*, const char*>>{
           {"/generate", R"({"text":"A"})"},
           {"/v1/completions", R"({"prompt":"A"})"},
           {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"A"}]})"}}) {
    const http::Response reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_THAT(reply.body, HasSubstr("no tokenizer")) << path;
  }
}

TEST_F(GenerateTest, TooManyRequestsAreToldToComeAgain) {
  engine_.submit_status = base::Fail(base::Code::kLimitExceeded, "2 requests wait already");
  const auto retry = std::pair(std::string("Retry-After"), std::string("1"));
  for (const char* stream : {"false", "true"}) {
    const http::Response reply =
        Post("/generate", std::string(R"({"input_ids":[1],"stream":)") + stream + "}");
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.body, R"({"error":{"message":"2 requests wait already"}})");
    EXPECT_THAT(reply.headers, testing::Contains(retry));
    const http::Response openai =
        Post("/v1/completions", std::string(R"({"prompt":[1],"stream":)") + stream + "}");
    EXPECT_EQ(openai.status, 429);
    EXPECT_EQ(At(ParseReply(openai), "error.type"), "\"rate_limit_error\"");
    EXPECT_THAT(openai.headers, testing::Contains(retry));
  }
}

}  // namespace
}  // namespace syncline::serve
