// Sessions of updates: begin, end, and what slime has instead of them.
#include <gmock/gmock.h>

#include "base/result_matchers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SessionRoutesTest : public Scene {
 protected:
  std::uint64_t Begun() { return front_.meters().sessions.value(); }
  std::uint64_t Ended() { return front_.meters().ended_sessions.value(); }
  std::uint64_t Failed() { return front_.meters().failed_sessions.value(); }
};

constexpr char kSuccess[] = R"({"success":true,"message":"Success"})";

TEST_F(SessionRoutesTest, ASession) {
  const http::Response begun = Post("/begin_weight_update", "{}");
  EXPECT_EQ(begun.status, 200);
  EXPECT_EQ(begun.body,
            R"({"success":true,"message":"Success","selector":"all","sync_base":true})");
  weights_.ended = update::UpdateReport{.tensors = 3,
                                        .skipped = 1,
                                        .bytes = 64,
                                        .undoable = false,
                                        .stage_seconds = 0.5,
                                        .apply_seconds = 0.25};
  const http::Response ended = Post("/end_weight_update", "{}");
  EXPECT_EQ(ended.status, 200);
  EXPECT_EQ(ended.body,
            R"({"success":true,"message":"Success","aborted":false,"weight_version":"7",)"
            R"("tensors":3,"skipped_tensors":1,"bytes":64,"unchanged":false,"undoable":false,)"
            R"("pending":[],"stage_seconds":0.5,"apply_seconds":0.25})");
  EXPECT_THAT(weights_.calls(), ElementsAre("begin all", "end"));
  EXPECT_EQ(Begun(), 1U);
  EXPECT_EQ(Ended(), 1U);
  EXPECT_EQ(front_.meters().tensor_apply_seconds.sum(), 0.25);
  EXPECT_EQ(front_.meters().unchanged_updates.value(), 0U);
}

TEST_F(SessionRoutesTest, FieldsOfBegin) {
  for (const char* body :
       {"", R"({"selector":null,"sync_base":null})", R"({"selector":"target"})",
        R"({"selector":"draft","sync_base":"false"})",
        R"({"selector":"all","sync_base":0,"new_lora_names":["a"],"session_id":"x"})"}) {
    EXPECT_EQ(Post("/begin_weight_update", body).status, 200) << body;
  }
  EXPECT_THAT(weights_.calls(), ElementsAre("begin all", "begin all", "begin target",
                                            "begin draft adapters", "begin all adapters"));
}

TEST_F(SessionRoutesTest, FieldsOfEnd) {
  for (const char* body : {"", R"({"abort":null,"expected_lora_checksums":null})",
                           R"({"expected_lora_checksums":{},"session_id":"x"})",
                           R"({"abort":true})", R"({"abort":"true"})"}) {
    EXPECT_EQ(Post("/end_weight_update", body).status, 200) << body;
  }
  EXPECT_THAT(weights_.calls(), ElementsAre("end", "end", "end", "end abort", "end abort"));
  EXPECT_EQ(At(ParseReply(Post("/end_weight_update", R"({"abort":true})")), "aborted"), "true");
  EXPECT_EQ(front_.meters().tensor_apply_seconds.count(), 3U);  // not of those that were undone
}

TEST_F(SessionRoutesTest, WrongFieldsReachNothing) {
  for (const auto& [path, body, part] :
       std::vector<std::tuple<const char*, const char*, const char*>>{
           {"/begin_weight_update", R"({"selector":"both"})",
            R"(selector: expected \"all\", \"target\" or \"draft\", got \"both\")"},
           {"/begin_weight_update", R"({"selector":1})", "selector: expected a string, got 1"},
           {"/begin_weight_update", R"({"sync_base":"maybe"})", "sync_base: expected a boolean"},
           {"/end_weight_update", R"({"abort":2})", "abort: expected a boolean"},
           {"/end_weight_update", R"({"expected_lora_checksums":{"a":{"k":"0"}}})",
            "expected_lora_checksums: this engine has no adapters to check"},
           {"/post_process_weights", R"({"post_process_quantization":"maybe"})",
            "post_process_quantization: expected a boolean"}}) {
    const http::Response reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(At(ParseReply(reply), "object"), "\"error\"") << body;
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(part)) << body;
  }
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

// The texts are those of update::Weights, which knows the state.
TEST_F(SessionRoutesTest, WhatTheWeightsRefuse) {
  const std::string open =
      "a weight-update session is already open; call end_weight_update() first";
  weights_.begun = Fail(Code::kOutOfOrder, open);
  http::Response reply = Post("/begin_weight_update", "{}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":")" + open + "\"}");
  const std::string closed = "no weight-update session is open; call begin_weight_update() first";
  weights_.ended = Fail(Code::kOutOfOrder, closed);
  reply = Post("/end_weight_update", "{}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":")" + closed + "\"}");
  EXPECT_EQ(Begun(), 0U);
  EXPECT_EQ(Ended(), 0U);
  EXPECT_EQ(Failed(), 1U);
}

TEST_F(SessionRoutesTest, ASessionThatChangesNothingIsCounted) {
  weights_.ended = update::UpdateReport{.unchanged = true};
  Post("/begin_weight_update", "{}");
  EXPECT_EQ(At(ParseReply(Post("/end_weight_update", "{}")), "unchanged"), "true");
  EXPECT_EQ(front_.meters().unchanged_updates.value(), 1U);
}

TEST_F(SessionRoutesTest, BR49AfterASessionTheLastUpdateFromDiskIsNotThereAlready) {
  EXPECT_EQ(UpdateToFive(), "false");
  EXPECT_EQ(UpdateToFive(), "true");
  Post("/begin_weight_update", "{}");
  EXPECT_EQ(UpdateToFive(), "false");  // inside it
  Post("/end_weight_update", "{}");
  EXPECT_EQ(UpdateToFive(), "false");
  EXPECT_EQ(UpdateToFive(), "true");
  Post("/begin_weight_update", "{}");
  weights_.ended = Fail(Code::kIo, "lost");
  Post("/end_weight_update", "{}");
  weights_.SetSession({});
  EXPECT_EQ(UpdateToFive(), "false");  // whatever the outcome
  EXPECT_EQ(UpdateToFive(), "true");
  weights_.SetSession({.incomplete = "an update in place failed"});
  EXPECT_EQ(UpdateToFive(), "false");
}

TEST_F(SessionRoutesTest, SlimesWay) {
  EXPECT_EQ(Post("/post_process_weights", R"({"restore_weights_before_load":true})").body,
            kSuccess);
  EXPECT_EQ(Post("/post_process_weights",
                 R"({"restore_weights_before_load":true,"post_process_quantization":false})")
                .body,
            kSuccess);  // it is begun anew
  EXPECT_EQ(Post("/post_process_weights",
                 R"({"restore_weights_before_load":false,"post_process_quantization":true})")
                .body,
            kSuccess);
  EXPECT_THAT(weights_.calls(), ElementsAre("begin all", "begin all", "end"));
  EXPECT_EQ(Post("/post_process_weights", R"({"post_process_quantization":true})").body, kSuccess);
  EXPECT_EQ(Post("/post_process_weights", "{}").body, kSuccess);
  EXPECT_EQ(Post("/post_process_weights", "").body, kSuccess);
  EXPECT_THAT(weights_.calls(), ElementsAre("begin all", "begin all", "end"));
  EXPECT_EQ(Post("/post_process_weights",
                 R"({"restore_weights_before_load":true,"post_process_quantization":true})")
                .body,
            kSuccess);
  EXPECT_THAT(weights_.calls(), ElementsAre("begin all", "begin all", "end", "begin all", "end"));
  EXPECT_EQ(Begun(), 3U);
  EXPECT_EQ(Ended(), 2U);
}

TEST_F(SessionRoutesTest, SlimesWayFails) {
  weights_.ended = Fail(Code::kIncompatible, "w: expected F32, got BF16");
  weights_.SetSession({.open = true});
  http::Response reply = Post("/post_process_weights", R"({"post_process_quantization":true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"w: expected F32, got BF16"})");
  EXPECT_EQ(Failed(), 1U);
  weights_.begun = Fail(Code::kOutOfOrder, "other");
  for (const char* body :
       {R"({"restore_weights_before_load":true})",
        R"({"restore_weights_before_load":true,"post_process_quantization":true})"}) {
    reply = Post("/post_process_weights", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.body, R"({"success":false,"message":"other"})");
  }
  EXPECT_THAT(weights_.calls(), ElementsAre("end", "begin all", "begin all"));
}

TEST_F(SessionRoutesTest, TheStateIsShown) {
  EXPECT_EQ(
      At(ParseReply(Get("/model_info")), "weight_update_session"),
      R"({"open":false,"selector":null,"loaded":false,"open_for_writes":false,"weight_version_pending":null,)"
      R"("failure":null,"pending":[],"incomplete":null})");
  EXPECT_THAT(Get("/metrics").body, HasSubstr("syncline_weight_session_open 0\n"));
  weights_.SetSession({.open = true,
                       .selector = update::Selector::kDraft,
                       .loaded = true,
                       .weight_version = "8",
                       .failure = "w: too short",
                       .incomplete = "half"});
  for (const char* path : {"/model_info", "/server_info"}) {
    EXPECT_EQ(
        At(ParseReply(Get(path)), "weight_update_session"),
        R"({"open":true,"selector":"draft","loaded":true,"open_for_writes":false,"weight_version_pending":"8",)"
        R"("failure":"w: too short","pending":[],"incomplete":"half"})");
  }
  EXPECT_THAT(Get("/metrics").body, HasSubstr("syncline_weight_session_open 1\n"));
  EXPECT_THAT(Get("/metrics").body, HasSubstr("syncline_weights_incomplete 1\n"));
  EXPECT_EQ(Get("/health").status, 200);  // the process lives
}

TEST_F(SessionRoutesTest, ALabelInASessionIsPending) {
  const char* body = R"({"new_version":"9","abort_all_requests":false})";
  EXPECT_EQ(Post("/update_weight_version", body).body,
            R"({"success":true,"message":"Weight version updated to 9","new_version":"9"})");
  Post("/begin_weight_update", "{}");
  EXPECT_EQ(
      Post("/update_weight_version", R"({"new_version":"10","abort_all_requests":false})").body,
      R"({"success":true,"message":"Weight version updated to 10","new_version":"10",)"
      R"("pending":true})");
  const Json info = ParseReply(Get("/model_info"));
  EXPECT_EQ(At(info, "weight_version"), R"("9")");
  EXPECT_EQ(At(info, "weight_update_session.weight_version_pending"), R"("10")");
}

}  // namespace
}  // namespace syncline::serve
