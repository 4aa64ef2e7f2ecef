// Updates from tensors in messages.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/result_matchers.h"
#include "http/test_client.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using payload::Format;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using update::Selector;
using update::TensorUpdate;

constexpr char kPath[] = "/update_weights_from_tensor";

class TensorRoutesTest : public Scene {
 protected:
  // "YWI=" and "Yw==" stand for "ab" and "c".
  http::Response Send(const std::string& more = "") {
    return Post(kPath, R"({"serialized_named_tensors":["YWI=","Yw=="])" + more + "}");
  }
  TensorUpdate Last() {
    const std::vector<TensorUpdate> all = weights_.tensor_updates();
    return all.empty() ? TensorUpdate() : all.back();
  }
  std::vector<std::string> LastPayloads() {
    std::vector<std::string> texts;
    for (const auto& bytes : Last().payloads) texts.emplace_back(base::AsText(bytes));
    return texts;
  }
};

TEST_F(TensorRoutesTest, AnUpdateWithoutASession) {
  const http::Response reply = Send(
      R"(,"weight_version":"3","flush_cache":false,"torch_empty_cache":true,"load_format":null)");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body,
            R"({"success":true,"message":"Success Weight version updated to 3.","tensors":2,)"
            R"("skipped_tensors":1,"bytes":32,"unchanged":false,"undoable":true,"pending":[],)"
            R"("stage_seconds":0.5,"apply_seconds":0.25})");
  EXPECT_THAT(LastPayloads(), ElementsAre("ab", "c"));
  EXPECT_EQ(Last().format, Format::kPlain);
  EXPECT_FALSE(Last().direct);
  EXPECT_FALSE(Last().flush_cache);
  EXPECT_EQ(Last().weight_version, "3");
  EXPECT_EQ(Last().selector, std::nullopt);
  EXPECT_THAT(engine_.calls(), IsEmpty());
  EXPECT_EQ(front_.meters().tensor_updates.value(), 1U);
  EXPECT_EQ(front_.meters().tensor_bytes.value(), 32U);
  EXPECT_EQ(front_.meters().tensor_stage_seconds.sum(), 0.5);
  EXPECT_EQ(front_.meters().tensor_apply_seconds.sum(), 0.25);
}

TEST_F(TensorRoutesTest, Defaults) {
  EXPECT_EQ(At(ParseReply(Send()), "message"), R"("Success")");
  EXPECT_TRUE(Last().flush_cache);
  EXPECT_EQ(Last().weight_version, std::nullopt);
}

// In a session the end applies what came, and sets the label.
TEST_F(TensorRoutesTest, AnUpdateInASession) {
  Post("/begin_weight_update", "{}");
  const Json reply = ParseReply(Send(R"(,"weight_version":"3")"));
  EXPECT_EQ(At(reply, "message"), R"("Success")");
  EXPECT_EQ(At(reply, "weight_version_pending"), R"("3")");
  EXPECT_EQ(At(ParseReply(Send()), "weight_version_pending"), "-");
  EXPECT_EQ(front_.meters().tensor_updates.value(), 2U);
  EXPECT_EQ(front_.meters().tensor_apply_seconds.count(), 0U);
}

TEST_F(TensorRoutesTest, LoadFormats) {
  struct Case {
    const char* json;
    Format format;
    bool direct;
  };
  for (const Case& c :
       {Case{"null", Format::kPlain, false}, Case{R"("auto")", Format::kPlain, false},
        Case{R"("direct")", Format::kPlain, true},
        Case{R"("flattened_bucket")", Format::kFlattenedBucket, false},
        Case{R"("safetensors")", Format::kSafetensors, false}}) {
    EXPECT_EQ(Send(fmt::format(R"(,"load_format":{})", c.json)).status, 200) << c.json;
    EXPECT_EQ(Last().format, c.format) << c.json;
    EXPECT_EQ(Last().direct, c.direct) << c.json;
  }
}

TEST_F(TensorRoutesTest, Selectors) {
  const auto selected = [&](const char* more) {
    EXPECT_EQ(Send(more).status, 200) << more;
    return Last().selector;
  };
  EXPECT_EQ(selected(R"(,"selector":null)"), std::nullopt);
  EXPECT_EQ(selected(R"(,"selector":"all")"), Selector::kAll);
  EXPECT_EQ(selected(R"(,"selector":"target")"), Selector::kTarget);
  EXPECT_EQ(selected(R"(,"selector":"draft")"), Selector::kDraft);
  EXPECT_EQ(selected(R"(,"disable_draft_model":true)"), Selector::kTarget);
  EXPECT_EQ(selected(R"(,"disable_draft_model":false)"), std::nullopt);
  EXPECT_EQ(selected(R"(,"disable_draft_model":null)"), std::nullopt);
  EXPECT_EQ(selected(R"(,"disable_draft_model":true,"selector":"all")"), Selector::kAll);
}

TEST_F(TensorRoutesTest, AnUpdateMayAbortAllFirst) {
  Send(R"(,"abort_all_requests":true)");
  EXPECT_THAT(engine_.calls(), ElementsAre("abort all"));
}

TEST_F(TensorRoutesTest, WrongFieldsReachNothing) {
  const std::string key = R"({"serialized_named_tensors":)";
  for (const auto& [body, part] : std::vector<std::pair<std::string, const char*>>{
           {"{}", "serialized_named_tensors: is required"},
           {key + "null}", "serialized_named_tensors: is required"},
           {key + R"("YWI="})", "expected a list of base64 texts, one for each rank, got"},
           {key + R"(["YWI=",3]})", "item 1: Expected base64-encoded bytes, got 3"},
           {key + R"(["YWI=","Y*I="]})",
            "serialized_named_tensors: item 1: Expected base64-encoded bytes: base64: character 1"},
           {key + R"(["YWI"]})", "item 0: Expected base64-encoded bytes: base64: 3 characters"},
           {key + R"(["YWI=\n"]})", "item 0: Expected base64-encoded bytes"},
           {key + R"([],"load_format":"verl.workers.rollout.sglang_rollout.weights.load_delta"})",
            R"(load_format: expected null, \"auto\", \"direct\", \"flattened_bucket\" or )"
            R"(\"safetensors\", got \"verl.workers.rollout.sglang_rollout.weights.load_delta\")"},
           {key + R"([],"load_format":"Direct"})", "load_format: expected"},
           {key + R"([],"load_format":7})", "load_format: expected a string, got 7"},
           {key + R"([],"selector":"none"})", "selector: expected"},
           {key + R"([],"weight_version":3})", "weight_version: expected a string, got 3"},
           {key + R"([],"flush_cache":"maybe","abort_all_requests":true})",
            "flush_cache: expected a boolean"}}) {
    const http::Response reply = Post(kPath, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(At(ParseReply(reply), "type"), "\"Bad Request\"") << body;
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(part)) << body;
  }
  EXPECT_THAT(weights_.calls(), IsEmpty());
  EXPECT_THAT(engine_.calls(), IsEmpty());
}

// How many there must be the weights know, who know the ranks.
TEST_F(TensorRoutesTest, AnyNumberOfPayloadsIsPassedOn) {
  EXPECT_EQ(Post(kPath, R"({"serialized_named_tensors":[]})").status, 200);
  EXPECT_THAT(Last().payloads, IsEmpty());
  EXPECT_EQ(Post(kPath, R"({"serialized_named_tensors":["","",""]})").status, 200);
  EXPECT_THAT(LastPayloads(), ElementsAre("", "", ""));
}

TEST_F(TensorRoutesTest, AFailure) {
  const std::string closed =
      "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()";
  weights_.updated = Fail(Code::kOutOfOrder, closed);
  const http::Response reply = Send(R"(,"weight_version":"3")");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":")" + closed + "\"}");
  EXPECT_EQ(front_.meters().failed_tensor_updates.value(), 1U);
  EXPECT_EQ(front_.meters().tensor_updates.value(), 0U);
}

TEST_F(TensorRoutesTest, WhatItCameTo) {
  weights_.updated =
      update::UpdateReport{.unchanged = true, .undoable = false, .pending = {"a.weight", "b"}};
  const Json reply = ParseReply(Send());
  EXPECT_EQ(At(reply, "unchanged"), "true");
  EXPECT_EQ(At(reply, "undoable"), "false");
  EXPECT_EQ(At(reply, "pending"), R"(["a.weight","b"])");
  EXPECT_EQ(front_.meters().unchanged_updates.value(), 1U);
}

TEST_F(TensorRoutesTest, BR49TheLastUpdateFromDiskIsNotThereAlready) {
  UpdateToFive();
  Send();
  EXPECT_EQ(UpdateToFive(), "false");
  EXPECT_EQ(UpdateToFive(), "true");
}

// One connection after the other sends without waiting: the order stays.
TEST_F(TensorRoutesTest, RequestsReachTheWeightsInTheirOrder) {
  std::vector<std::shared_ptr<FakeExchange>> all;
  std::vector<std::string> expected;
  const std::string large(1 << 16, 'A');
  for (int i = 0; i < 20; ++i) {
    all.push_back(Start("POST", "/begin_weight_update", "{}"));
    all.push_back(Start("POST", kPath, R"({"serialized_named_tensors":[")" + large + "\"]}"));
    all.push_back(Start("POST", "/update_weights_from_tensor_raw", "x"));
    all.push_back(Start("POST", "/end_weight_update", "{}"));
    expected.insert(expected.end(), {"begin all", "tensors", "tensors", "end"});
  }
  for (const auto& exchange : all) EXPECT_EQ(exchange->Wait().status, 200);
  EXPECT_EQ(weights_.calls(), expected);
}

class RawRouteTest : public TensorRoutesTest {};

TEST_F(RawRouteTest, TheBodyIsTheFile) {
  const std::string file("\0\1{\xff", 4);
  http::Response reply = Post(
      "/update_weights_from_tensor_raw?weight_version=3&flush_cache=false&selector=draft"
      "&abort_all_requests=true&token_step=4",
      file);
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(At(ParseReply(reply), "message"), R"("Success Weight version updated to 3.")");
  EXPECT_THAT(LastPayloads(), ElementsAre(file));
  EXPECT_EQ(Last().format, Format::kSafetensors);
  EXPECT_EQ(Last().weight_version, "3");
  EXPECT_FALSE(Last().flush_cache);
  EXPECT_EQ(Last().selector, Selector::kDraft);
  EXPECT_THAT(engine_.calls(), ElementsAre("abort all"));
  reply = Post("/update_weights_from_tensor_raw", "x");
  EXPECT_EQ(At(ParseReply(reply), "message"), R"("Success")");
  EXPECT_TRUE(Last().flush_cache);
  EXPECT_EQ(Last().selector, std::nullopt);
}

TEST_F(RawRouteTest, WrongQueriesReachNothing) {
  for (const auto& [query, part] : std::vector<std::pair<const char*, const char*>>{
           {"flush_cache=maybe", "flush_cache: expected a boolean"},
           {"selector=none", "selector: expected"},
           {"abort_all_requests=", "abort_all_requests: expected a boolean"}}) {
    const http::Response reply =
        Post(fmt::format("/update_weights_from_tensor_raw?{}", query), "x");
    EXPECT_EQ(reply.status, 400) << query;
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(part)) << query;
  }
  EXPECT_THAT(weights_.calls(), IsEmpty());
  EXPECT_THAT(engine_.calls(), IsEmpty());
}

TEST_F(RawRouteTest, OverHttp) {
  const auto server = http::MustStart([this](const RequestPtr& request, ExchangePtr exchange) {
    router_.Handle(request, std::move(exchange));
  });
  std::string file(3 << 20, '\0');
  for (std::size_t i = 0; i < file.size(); ++i) file[i] = static_cast<char>(i % 251);
  http::TestClient client(server->port());
  ASSERT_TRUE(client.Send(http::Post("/update_weights_from_tensor_raw?weight_version=a%20b", file,
                                     "Content-Type: application/octet-stream\r\n")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  ASSERT_THAT(Last().payloads, SizeIs(1));
  EXPECT_TRUE(LastPayloads()[0] == file);
  EXPECT_EQ(Last().weight_version, "a b");
  server->Stop({});
}

}  // namespace
}  // namespace syncline::serve
