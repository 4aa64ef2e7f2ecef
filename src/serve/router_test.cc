// The table of routes, states of the server, and the shapes of errors.
#include "serve/router.h"

#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Json;
using testing::HasSubstr;

class RouterTest : public Scene {};

// A rank is gone: whoever asks is told so, until the process ends.
TEST_F(RouterTest, AFailedEngineSaysWhy) {
  front_.Fail({base::Code::kUnavailable, "rank 2 (host 10.0.0.2) is gone"});
  front_.Fail({base::Code::kUnavailable, "something that follows from it"});
  front_.BeginStopping();
  EXPECT_EQ(Get("/health").status, 503);
  const http::Response reply = Post("/generate", R"({"input_ids":[1]})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, testing::HasSubstr("rank 2 (host 10.0.0.2) is gone"));
}

TEST_F(RouterTest, UnknownPathsAndMethods) {
  const http::Response gone = Post("/update_weights_from_thin_air", "{}");
  EXPECT_EQ(gone.status, 404);
  EXPECT_THAT(gone.body, HasSubstr("/update_weights_from_thin_air"));
  const http::Response wrong = Get("/generate");
  EXPECT_EQ(wrong.status, 405);
  ASSERT_EQ(wrong.headers.size(), 1U);
  EXPECT_EQ(wrong.headers[0], std::pair(std::string("Allow"), std::string("POST, PUT")));
}

TEST_F(RouterTest, EveryRouteAnswersWhateverTheBody) {
  for (const Route& route : router_.routes()) {
    for (const char* body : {"", "{}", "[]", "3", "{\"a\"", "\xff\xfe", "{\"a\":1,\"a\":2}"}) {
      const std::string path = route.path.ends_with("/*") ? "/v1/models/x" : route.path;
      const http::Response reply = Start(route.methods.back(), path, body)->Wait();
      EXPECT_NE(reply.status, 0) << path << " " << body << ": " << reply.body;
      EXPECT_LT(reply.status, 500) << path << " " << body << ": " << reply.body;
    }
  }
}

// No route that reads a body may follow it to any depth or be made to do anything by it.
TEST_F(RouterTest, BR46DeepJsonIsRefusedWithoutEffect) {
  std::string deep = "{\"model_path\":";
  for (int i = 0; i < 100000; ++i) deep += '[';
  for (const Route& route : router_.routes()) {
    if (route.methods.back() == "GET" || route.path == "/flush_cache") continue;
    if (route.path == "/update_weights_from_tensor_raw") continue;  // whose body is no JSON
    const http::Response reply = Start(route.methods.back(), route.path, deep)->Wait();
    EXPECT_EQ(reply.status, 400) << route.path;
  }
  EXPECT_TRUE(engine_.calls().empty());
  EXPECT_TRUE(engine_.requests().empty());
  EXPECT_TRUE(weights_.calls().empty());
}

TEST_F(RouterTest, ErrorsOfBothFamilies) {
  const Json ours = ParseReply(Post("/generate", R"({"input_ids":"x"})"));
  EXPECT_EQ(At(ours, "object"), "\"error\"");
  EXPECT_EQ(At(ours, "type"), "\"Bad Request\"");
  EXPECT_EQ(At(ours, "param"), "null");
  EXPECT_EQ(At(ours, "code"), "400");
  EXPECT_THAT(At(ours, "message"), HasSubstr("input_ids: expected a list"));
  const Json openai = ParseReply(Post("/v1/completions", R"({"prompt":3})"));
  EXPECT_EQ(At(openai, "error.type"), "\"invalid_request_error\"");
  EXPECT_EQ(At(openai, "error.code"), "400");
  EXPECT_THAT(At(openai, "error.message"), HasSubstr("prompt: expected a string, got 3"));
}

TEST_F(RouterTest, HandlersThatThrowAnswer500) {
  router_.Add({.methods = {"GET"},
               .path = "/throws",
               .level = Level::kNormal,
               .handler = [](const auto&, const auto&) { throw std::runtime_error("broken"); }});
  const http::Response reply = Get("/throws");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("broken"));
}

TEST_F(RouterTest, RepliesAreCounted) {
  Get("/health");
  Get("/nowhere");
  Post("/generate", "{");
  EXPECT_EQ(front_.meters().http_requests.value(), 3U);
  EXPECT_EQ(front_.meters().http_client_errors.value(), 2U);
  EXPECT_EQ(front_.open_requests(), 0U);
}

class StatesTest : public Scene {
  void SetUp() override {}
};

TEST_F(StatesTest, HealthyOnlyBetweenLoadingAndStopping) {
  EXPECT_EQ(Get("/health").status, 503);
  EXPECT_EQ(Get("/health_generate").status, 503);
  GetReady();
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/health_generate").status, 200);
  front_.BeginStopping();
  EXPECT_EQ(Get("/health").status, 503);
}

TEST_F(StatesTest, RoutesSayWhyTheyDoNotAnswer) {
  const auto expect_refusal = [&](const char* why) {
    for (const char* path : {"/generate", "/pause_generation", "/v1/completions"}) {
      const http::Response reply = Post(path, "{}");
      EXPECT_EQ(reply.status, 503) << path;
      EXPECT_THAT(At(ParseReply(reply), "error.message"), HasSubstr(why)) << path;
    }
    EXPECT_EQ(Get("/model_info").status, 503);
    EXPECT_EQ(Get("/nowhere").status, 404);
    EXPECT_EQ(Get("/metrics").status, 200);
    EXPECT_EQ(Get("/").status, 200);
  };
  expect_refusal("the model is being loaded");
  front_.BeginStopping();
  expect_refusal("the server is stopping");
  GetReady();  // the model is there, too late
  expect_refusal("the server is stopping");
}

TEST(RepliesTest, EventsHaveNoCharacterThatAClientMayTakeForTheEndOfALine) {
  EXPECT_EQ(ServerSentEvent("\"a\xC2\x85"
                            "b\xE2\x80\xA8"
                            "c\xE2\x80\xA9\""),
            "data: \"a\\u0085b\\u2028c\\u2029\"\n\n");
  for (const char* same : {"", "x", "\"é€…“\"", "\xC2", "\xE2\x80", "\xE2"}) {
    EXPECT_EQ(ServerSentEvent(same), "data: " + std::string(same) + "\n\n");
  }
}

}  // namespace
}  // namespace syncline::serve
