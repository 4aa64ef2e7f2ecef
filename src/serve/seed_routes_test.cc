#include <gmock/gmock.h>

#include "serve/scene.h"

namespace syncline::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kInit = "/init_weights_send_group_for_remote_instance";
constexpr const char* kSend = "/send_weights_to_remote_instance";

class SeedRoutesTest : public Scene {};

TEST_F(SeedRoutesTest, GroupsAsSglangAsksForThem) {
  weights_.seed_ports = std::vector<std::uint16_t>{4001, 4002};
  const http::Response reply = Post(
      kInit,
      R"({"master_address":"h","ports":"4001,4002","group_rank":0,"world_size":2,"group_name":"g",
          "backend":"gloo","unknown":1})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, R"({"success":true,"message":)"
                        R"("Succeeded to init group through h:4001,4002 group.",)"
                        R"("ports":"4001,4002"})");
  Post(kInit, R"({"master_address":"h","group_rank":"0","world_size":3})");
  EXPECT_THAT(weights_.calls(), ElementsAre("open seed g h [4001 4002] 0/2 gloo",
                                            "open seed weight_send_group h [] 0/3 nccl"));
}

TEST_F(SeedRoutesTest, GroupsThatMakeNoSense) {
  for (const char* body :
       {R"({"group_rank":0,"world_size":2})", R"({"master_address":"h","world_size":2})",
        R"({"master_address":"h","group_rank":0})",
        R"({"master_address":"h","group_rank":1,"world_size":2})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"group_name":""})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"ports":""})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"ports":"1,"})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"ports":"0"})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"ports":"1,65536"})",
        R"({"master_address":"h","group_rank":0,"world_size":2,"ports":"1 2"})"}) {
    EXPECT_EQ(Post(kInit, body).status, 400) << body;
  }
  EXPECT_THAT(weights_.calls(), ElementsAre());
}

TEST_F(SeedRoutesTest, AGroupThatDoesNotCome) {
  weights_.seed_ports = base::Fail(base::Code::kTimeout, "nobody came");
  const http::Response reply =
      Post(kInit, R"({"master_address":"h","group_rank":0,"world_size":2})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"Failed to init group: nobody came."})");
}

TEST_F(SeedRoutesTest, WhatIsSentIsNamed) {
  weights_.seeded = update::SeedReport{.weight_version = "5", .hashes = {"aa", "bb"}};
  EXPECT_EQ(Post(kSend, R"({"master_address":"h","ports":"1","group_name":"g"})").body,
            R"({"success":true,"message":"Succeeded to send weights through g.",)"
            R"("weight_version":"5","hashes":["aa","bb"]})");
  weights_.seeded = base::Fail(base::Code::kNotFound, "no g");
  const http::Response reply = Post(kSend, R"({"group_name":"g"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"Failed to send weights: no g."})");
  EXPECT_THAT(weights_.calls(), ElementsAre("send seed g", "send seed g"));
}

TEST_F(SeedRoutesTest, WhatTheOtherEngineComparesWith) {
  EXPECT_THAT(Get("/seed_info").body, HasSubstr(R"("layout":"alike")"));
}

}  // namespace
}  // namespace syncline::serve
