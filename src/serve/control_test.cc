// Pause, continue, flush, abort, label, and what the server says of itself.
#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ControlTest : public Scene {};

TEST_F(ControlTest, PauseInEveryMode) {
  for (const char* body : {"", "{}", R"({"mode":"abort"})", R"({"mode":"retract"})",
                           R"({"mode":"in_place"})", R"({"mode":null})"}) {
    const http::Response reply = Post("/pause_generation", body);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, R"({"message":"Generation paused successfully.","status":"ok"})");
  }
  EXPECT_THAT(engine_.calls(), ElementsAre("pause abort", "pause abort", "pause abort",
                                           "pause retract", "pause in_place", "pause abort"));
}

TEST_F(ControlTest, AnUnknownModeIsRefused) {
  const http::Response reply = Post("/pause_generation", R"({"mode":"nap"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(At(ParseReply(reply), "message"),
              HasSubstr("mode: expected \\\"abort\\\", \\\"retract\\\" or \\\"in_place\\\""));
  EXPECT_THAT(engine_.calls(), IsEmpty());
}

TEST_F(ControlTest, ContinueEndsThePauseThatIsMeasured) {
  Post("/pause_generation", "{}");
  EXPECT_EQ(front_.meters().pause_seconds.count(), 0U);
  const http::Response reply = Post("/continue_generation", R"({"torch_empty_cache":true})");
  EXPECT_EQ(reply.body, R"({"message":"Generation continued successfully.","status":"ok"})");
  EXPECT_EQ(Post("/continue_generation").status, 200);
  EXPECT_EQ(front_.meters().pause_seconds.count(), 1U);
}

// What was gated must not run between an update's begin and its end.
TEST_F(ControlTest, AContinueWaitsForUpdatesThatBeganWhilePaused) {
  engine_.SetStats({.paused = true, .alive = std::chrono::steady_clock::now()});
  weights_.hold = true;
  const auto update = Start("POST", "/update_weights_from_disk", R"({"model_path":"/m"})");
  Settle();
  const auto next = Start("POST", "/continue_generation");
  const auto pause = Start("POST", "/pause_generation", R"({"mode":"retract"})");
  Settle();
  EXPECT_FALSE(update->answered());
  EXPECT_FALSE(next->answered());
  EXPECT_THAT(engine_.calls(), IsEmpty());
  EXPECT_EQ(Get("/health_generate").status, 200);
  weights_.Finish();
  EXPECT_EQ(next->Wait().status, 200);
  EXPECT_EQ(pause->Wait().status, 200);
  EXPECT_EQ(update->Wait().status, 200);
  EXPECT_THAT(engine_.calls(), ElementsAre("continue", "pause retract"));
}

TEST_F(ControlTest, AContinueDoesNotWaitForUpdatesThatBeganUnpausedNorForPulls) {
  weights_.hold = true;
  const auto update = Start("POST", "/update_weights_from_disk", R"({"model_path":"/m"})");
  engine_.SetStats({.paused = true, .alive = std::chrono::steady_clock::now()});
  const auto pull = Start("POST", "/pull_weights",
                          R"({"local_checkpoint_dir":"/a","source_dir":"/b","target_version":1})");
  EXPECT_EQ(Post("/continue_generation").status, 200);
  EXPECT_FALSE(update->answered());
  EXPECT_FALSE(pull->answered());
  weights_.Finish();
  update->Wait();
  pull->Wait();
}

TEST_F(ControlTest, Flush) {
  EXPECT_EQ(Get("/flush_cache").status, 200);
  EXPECT_EQ(Post("/flush_cache?timeout=1.5").status, 200);
  EXPECT_EQ(Get("/flush_cache?timeout=1e300").status, 200);
  EXPECT_THAT(engine_.calls(), ElementsAre("flush 0", "flush 1500", "flush 86400000"));
  for (const char* bad : {"-1", "x", "", "nan", "1s"}) {
    EXPECT_EQ(Get(std::string("/flush_cache?timeout=") + bad).status, 400) << bad;
  }
}

TEST_F(ControlTest, AFlushThatFailsSaysWhyInPlainText) {
  for (const auto& [status, text] : std::vector<std::pair<base::Status, const char*>>{
           {Fail(Code::kOutOfOrder, "3 requests run"), "Flush cache failed. 3 requests run\n"},
           {Fail(Code::kTimeout, "late"), "Timed out waiting for idle state.\n"},
           {Fail(Code::kLocked, "busy"), "Another flush_cache is already in progress.\n"}}) {
    engine_.flush_status = status;
    const http::Response reply = Get("/flush_cache");
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.body, text);
    EXPECT_THAT(reply.content_type, HasSubstr("text/plain"));
  }
}

TEST_F(ControlTest, Abort) {
  for (const char* body : {R"({"rid":"a"})", R"({"rid":"a","prefix":true})",
                           R"({"abort_all":true})", R"({"rid":"a","abort_all":true})", "{}",
                           R"({"rid":null})", "", R"({"rid":"","prefix":true})"}) {
    const http::Response reply = Post("/abort_request", body);
    EXPECT_EQ(reply.status, 200) << body;
    EXPECT_EQ(reply.body, "") << body;
  }
  EXPECT_THAT(engine_.calls(), ElementsAre("abort a", "abort prefix a", "abort all", "abort all"));
}

TEST_F(ControlTest, OneIdMayStandForABatch) {
  engine_.hold = true;
  const auto exchange = Start("POST", "/generate", R"({"input_ids":[[1],[2]],"rid":"g"})");
  Post("/abort_request", R"({"rid":"g"})");
  const Json json = ParseReply(exchange->Wait());
  EXPECT_EQ(At(json, "0.meta_info.finish_reason.type"), R"("abort")");
  EXPECT_EQ(At(json, "1.meta_info.finish_reason.type"), R"("abort")");
  EXPECT_THAT(engine_.calls(), ElementsAre("abort g_0", "abort g_1"));
  Settle();
  Post("/abort_request", R"({"rid":"g"})");  // the group has ended with its call
  EXPECT_EQ(engine_.calls().back(), "abort g");
}

TEST_F(ControlTest, TheLabelOfTheWeights) {
  const http::Response reply =
      Post("/update_weight_version", R"({"new_version":"42","abort_all_requests":false})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body,
            R"({"success":true,"message":"Weight version updated to 42","new_version":"42"})");
  EXPECT_THAT(engine_.calls(), ElementsAre("version 42"));
  for (const char* path : {"/get_weight_version", "/weight_version", "/model_info",
                           "/get_model_info", "/server_info"}) {
    EXPECT_EQ(At(ParseReply(Get(path)), "weight_version"), R"("42")") << path;
  }
}

TEST_F(ControlTest, ALabelAbortsAllUnlessToldOtherwise) {
  Post("/update_weight_version", R"({"new_version":"1"})");
  EXPECT_THAT(engine_.calls(), ElementsAre("abort all", "version 1"));
  EXPECT_EQ(Post("/update_weight_version", "{}").status, 400);
  engine_.control_status = Fail(Code::kUnavailable, "gone");
  const http::Response reply = Post("/update_weight_version", R"({"new_version":"2"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"Failed to update weight version: gone"})");
}

TEST_F(ControlTest, ModelInfo) {
  const Json json = ParseReply(Get("/model_info"));
  EXPECT_EQ(At(json, "model_path"), R"("/models/launch")");
  EXPECT_EQ(At(json, "served_model_name"), R"("tiny")");
  EXPECT_EQ(At(json, "is_generation"), "true");
  EXPECT_EQ(At(json, "model_type"), R"("llama")");
  EXPECT_EQ(At(json, "architectures"), R"(["LlamaForCausalLM"])");
  for (const char* field :
       {"tokenizer_path", "preferred_sampling_params", "load_format", "reasoning_parser",
        "tool_call_parser", "has_image_understanding", "has_audio_understanding"}) {
    EXPECT_NE(At(json, field), "-") << field;
  }
}

TEST_F(ControlTest, ServerInfo) {
  engine_.SetStats({.paused = true,
                    .running = 2,
                    .waiting = 3,
                    .gated = 4,
                    .kv_tokens_used = 5,
                    .kv_tokens_total = 10,
                    .weight_version = "8"});
  const Json json = ParseReply(Get("/get_server_info"));
  EXPECT_EQ(At(json, "max_running_requests"), "8");
  EXPECT_EQ(At(json, "weight_version"), R"("8")");  // the live one, not the option
  EXPECT_EQ(At(json, "disaggregation_mode"), R"("null")");
  EXPECT_EQ(At(json, "encoder_only"), "false");
  EXPECT_EQ(At(json, "version"), R"("1.2.3")");
  EXPECT_EQ(At(json, "internal_states.0.num_running_reqs"), "2");
  EXPECT_EQ(At(json, "internal_states.0.paused"), "true");
  const Json loads = ParseReply(Get("/v1/loads?include=core"));
  EXPECT_EQ(At(loads, "loads.0.num_running_reqs"), "2");
  EXPECT_EQ(At(loads, "loads.0.num_waiting_reqs"), "7");  // gated ones wait too
  EXPECT_EQ(At(loads, "loads.0.token_usage"), "0.5");
}

TEST_F(ControlTest, HealthAsksWhetherTheEngineComesBy) {
  using std::chrono::steady_clock;
  engine_.SetStats({.paused = true, .alive = steady_clock::now() - std::chrono::seconds(5)});
  EXPECT_EQ(Get("/health_generate").status, 200);
  engine_.SetStats({.alive = steady_clock::now() - std::chrono::seconds(60)});
  EXPECT_EQ(Get("/health_generate").status, 503);
  EXPECT_EQ(Get("/health").body, "");
}

TEST_F(ControlTest, Metrics) {
  Post("/generate", R"({"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4}})");
  Start("POST", "/generate",
        R"({"input_ids":[1],"stream":true,"sampling_params":{"max_new_tokens":1}})")
      ->Wait();
  Settle();
  engine_.SetStats({.running = 2, .waiting = 1, .kv_tokens_used = 9});
  const http::Response reply = Get("/metrics");
  EXPECT_THAT(reply.content_type, HasSubstr("version=0.0.4"));
  for (const char* line :
       {"syncline_prompt_tokens_total 4\n", "syncline_generated_tokens_total 5\n",
        "syncline_generations_total 2\n", "syncline_running_requests 2\n",
        "syncline_waiting_requests 1\n", "syncline_kv_tokens_used 9\n",
        "syncline_generation_seconds_count 2\n", "syncline_first_token_seconds_count 1\n",
        "syncline_weight_updates_total 0\n", "syncline_http_requests_total 2\n"}) {
    EXPECT_THAT(reply.body, HasSubstr(line));
  }
}

}  // namespace
}  // namespace syncline::serve
