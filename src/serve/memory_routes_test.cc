// Memory that is given back and taken again.
#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kRelease[] = "/release_memory_occupation";
constexpr char kResume[] = "/resume_memory_occupation";

class MemoryRoutesTest : public Scene {};

TEST_F(MemoryRoutesTest, NoTagsAreAllTags) {
  for (const char* body : {"", "{}", R"({"tags":null})", R"({"tags":[]})",
                           R"({"tags":["cuda_graph","weights","kv_cache"],"more":1})"}) {
    for (const char* method : {"GET", "POST"}) {
      const http::Response reply = Start(method, kRelease, body)->Wait();
      EXPECT_EQ(reply.status, 200) << method << body;
      EXPECT_EQ(reply.body, "null");
    }
    EXPECT_EQ(Post(kResume, body).body, "null");
  }
  EXPECT_EQ(weights_.calls().size(), 15U);
  for (const std::string& call : weights_.calls())
    EXPECT_THAT(call, HasSubstr(" kv_cache weights"));
}

TEST_F(MemoryRoutesTest, Tags) {
  Post(kRelease, R"({"tags":["kv_cache"]})");
  Post(kRelease, R"({"tags":["weights"]})");
  Post(kResume, R"({"tags":["weights"]})");
  Post(kResume, R"({"tags":["kv_cache","cuda_graph"]})");
  EXPECT_EQ(Post(kRelease, R"({"tags":["cuda_graph"]})").body, "null");
  EXPECT_THAT(weights_.calls(), ElementsAre("release kv_cache", "release weights", "resume weights",
                                            "resume kv_cache", "release"));
}

TEST_F(MemoryRoutesTest, WrongTagsReachNothing) {
  for (const char* path : {kRelease, kResume}) {
    const http::Response reply = Post(path, R"({"tags":["weights","attic"]})");
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(At(ParseReply(reply), "error.message"),
              R"("tags: expected \"kv_cache\", \"weights\" or \"cuda_graph\", got \"attic\"")");
    for (const char* body : {R"({"tags":"weights"})", R"({"tags":[1]})", R"({"tags":{}})"}) {
      EXPECT_EQ(Post(path, body).status, 400) << body;
    }
    EXPECT_EQ(Post(path, "[").status, 400);
  }
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

TEST_F(MemoryRoutesTest, AFailureSaysWhy) {
  for (const Code code : {Code::kOutOfOrder, Code::kNoSpace, Code::kInternal}) {
    weights_.memory_changed = Fail(code, "the engine is not idle");
    for (const char* path : {kRelease, kResume}) {
      const http::Response reply = Post(path);
      EXPECT_EQ(reply.status, 400);
      EXPECT_EQ(reply.body, R"({"error":{"message":"the engine is not idle"}})");
    }
  }
}

TEST_F(MemoryRoutesTest, WhatIsReleasedShows) {
  EXPECT_EQ(At(ParseReply(Get("/v1/loads")), "loads.0.memory_released"), "[]");
  EXPECT_THAT(Get("/metrics").body, HasSubstr("syncline_weights_released 0\n"));
  weights_.SetSession({.released = {.kv_cache = true, .weights = true}});
  EXPECT_EQ(At(ParseReply(Get("/v1/loads")), "loads.0.memory_released"),
            R"(["kv_cache","weights"])");
  EXPECT_EQ(At(ParseReply(Get("/server_info")), "internal_states.0.memory_released"),
            R"(["kv_cache","weights"])");
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("syncline_kv_cache_released 1\n"));
  EXPECT_THAT(metrics, HasSubstr("syncline_weights_released 1\n"));
}

// The same weights, but they are not there.
TEST_F(MemoryRoutesTest, AnUpdateOverReleasedWeightsIsNotAnsweredFromMemory) {
  EXPECT_EQ(UpdateToFive(), "false");
  EXPECT_EQ(UpdateToFive(), "true");
  weights_.SetSession({.released = {.weights = true}});
  EXPECT_EQ(UpdateToFive(), "false");
}

}  // namespace
}  // namespace syncline::serve
