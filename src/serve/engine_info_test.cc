#include "serve/engine_info.h"

#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using ::testing::HasSubstr;

constexpr const char* kInfo =
    R"({"rank":1,"remote_instance_transfer_engine_info":["h:7",{"w":[4096,12,2]}]})";

update::WindowInfo Window() {
  return {.session = "h:7",
          .parameters = {{.name = "w", .address = 4096, .elements = 12, .element_bytes = 2}}};
}

class P2pRoutesTest : public Scene {};

TEST_F(P2pRoutesTest, WhatARankOffersIsSaidUnderBothNames) {
  front_.engine_info.Set(1, Window());
  for (const char* path :
       {"/remote_instance_transfer_engine_info", "/get_remote_instance_transfer_engine_info"}) {
    const http::Response reply = Get(std::string(path) + "?rank=1");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, kInfo);
    const http::Response other = Get(std::string(path) + "?rank=2");
    EXPECT_EQ(other.status, 400);
    EXPECT_EQ(other.body,
              R"({"error":{"message":"Failed to get transfer engine info for rank 2"}})");
  }
}

TEST_F(P2pRoutesTest, RanksAreNumbers) {
  front_.engine_info.Set(0, Window());
  for (const char* path : {"/get_remote_instance_transfer_engine_info", "/parallelism_config"}) {
    for (const char* query :
         {"", "?rank=", "?rank=-1", "?rank=0x", "?rank=one", "?rank=99999999999999999999"}) {
      const http::Response reply = Get(std::string(path) + query);
      EXPECT_EQ(reply.status, 400) << query;
      EXPECT_EQ(reply.body, R"({"error":{"message":"Missing or invalid rank parameter"}})");
    }
  }
}

class DividedTest : public Scene {
 protected:
  void SetUp() override {
    front_.SetReady({.engine = &engine_, .weights = &weights_, .vocabulary = &vocabulary_},
                    {.parallelism = {.shard = {.rank = 0, .size = 8, .expert_groups = 4},
                                     .ranks_on_each_host = 4}});
  }
};

TEST_F(DividedTest, ParallelismOfARank) {
  const base::Json config = ParseReply(Get("/parallelism_config?rank=7"));
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"tp_size", "8"},      {"tp_rank", "7"},      {"pp_size", "1"},      {"pp_rank", "0"},
      {"ep_size", "4"},      {"ep_rank", "3"},      {"moe_tp_size", "2"},  {"moe_tp_rank", "1"},
      {"attn_tp_size", "8"}, {"attn_tp_rank", "7"}, {"attn_dp_size", "1"}, {"attn_dp_rank", "0"},
      {"world_size", "8"},   {"global_rank", "7"},  {"local_rank", "3"}};
  for (const auto& [name, value] : expected) EXPECT_EQ(At(config, name), value) << name;
  EXPECT_EQ(config.object()->size(), expected.size());
  const http::Response beyond = Get("/parallelism_config?rank=8");
  EXPECT_EQ(beyond.status, 400);
  EXPECT_THAT(beyond.body, HasSubstr("the engine has 8 ranks"));
}

class RegistryTest : public Scene {
 protected:
  RegistryTest() { AddEngineInfoRoutes(registry_router_, info_); }

  http::Response Send(const std::string& method, const std::string& path, std::string body = "",
                      std::vector<std::pair<std::string, std::string>> query = {}) {
    auto request = std::make_shared<http::Request>();
    request->method = method;
    request->path = path;
    request->query = std::move(query);
    request->body = std::move(body);
    auto exchange = std::make_shared<FakeExchange>();
    registry_router_.Handle(request, exchange);
    return exchange->Wait();
  }

  EngineInfo info_;
  Router registry_router_{front_, {}};
};

TEST_F(RegistryTest, WhatIsRegisteredIsFound) {
  for (const char* name : {"rank", "tp_rank"}) {
    const std::string message =
        std::string(R"({")") + name +
        R"(":1,"transfer_engine_info":{"session_id":"h:7","weights_info_dict":{"w":[4096,12,2]}}})";
    EXPECT_EQ(Send("PUT", "/register_transfer_engine_info", message).body, "OK");
    EXPECT_EQ(Send("GET", "/get_transfer_engine_info", "", {{"rank", "1"}}).body, kInfo);
  }
  EXPECT_EQ(Send("GET", "/get_transfer_engine_info", "", {{"rank", "2"}}).status, 404);
  EXPECT_EQ(Send("GET", "/get_transfer_engine_info", "", {{"rank", "-2"}}).status, 400);
  EXPECT_EQ(Send("GET", "/health").body, "OK");
}

TEST_F(RegistryTest, MessagesThatMakeNoSense) {
  for (
      const char* message :
      {"", "[]", "{}", R"({"rank":-1})", R"({"rank":1024,"transfer_engine_info":{}})",
       R"({"rank":1})", R"({"rank":1,"transfer_engine_info":{"weights_info_dict":{}}})",
       R"({"rank":1,"transfer_engine_info":{"session_id":"h:7"}})",
       R"({"rank":1,"transfer_engine_info":{"session_id":"h:7","weights_info_dict":{"w":[1,2]}}})"}) {
    EXPECT_EQ(Send("PUT", "/register_transfer_engine_info", message).status, 400) << message;
  }
  EXPECT_FALSE(info_.Of(1));
}

TEST_F(RegistryTest, ARankOfThisEngineCannotBeReplaced) {
  info_.Set(1, Window());
  const http::Response reply =
      Send("PUT", "/register_transfer_engine_info",
           R"({"rank":1,"transfer_engine_info":{"session_id":"x:1","weights_info_dict":{}}})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("rank 1 is this engine's own"));
  EXPECT_EQ(ToText(*info_.Of(1)), kInfo);
}

}  // namespace
}  // namespace syncline::serve
