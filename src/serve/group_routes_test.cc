// Groups of trainers' processes, and updates over them.
#include <gmock/gmock.h>

#include "base/result_matchers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using update::GroupRequest;
using update::GroupUpdate;

constexpr char kPath[] = "/update_weights_from_distributed";

class GroupRoutesTest : public Scene {
 protected:
  // Two tensors.
  http::Response Send(const std::string& more = "") {
    return Post(kPath, R"({"names":["a","b"],"dtypes":["bfloat16","float8_e4m3fn"],)"
                       R"("shapes":[[2,3],[]])" +
                           more + "}");
  }
  std::string Message(const http::Response& reply) { return At(ParseReply(reply), "message"); }
};

TEST_F(GroupRoutesTest, Joining) {
  const http::Response reply =
      Post("/init_weights_update_group",
           R"({"master_address":"::1","master_port":"29500","rank_offset":3,"world_size":9,)"
           R"("group_name":"miles-pp_0","backend":"gloo","pp_rank":0})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body,
            R"({"success":true,"message":"Succeeded to initialize custom process group."})");
  ASSERT_EQ(weights_.joined_groups().size(), 1);
  const GroupRequest request = weights_.joined_groups()[0];
  EXPECT_EQ(request.address.host, "::1");
  EXPECT_EQ(request.address.port, 29500);
  EXPECT_EQ(request.address.size, 9);
  EXPECT_EQ(request.address.name, "miles-pp_0");
  EXPECT_EQ(request.address.backend, "gloo");
  EXPECT_EQ(request.rank_offset, 3);
}

TEST_F(GroupRoutesTest, JoiningByDefault) {
  weights_.joined = Fail(Code::kInvalidArgument, "backend \"nccl\"");
  const http::Response reply =
      Post("/init_weights_update_group",
           R"({"master_address":"h","master_port":1,"rank_offset":1,"world_size":2})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Message(reply), R"("Failed to initialize custom process group: backend \"nccl\".")");
  EXPECT_EQ(weights_.joined_groups()[0].address.name, "weight_update_group");
  EXPECT_EQ(weights_.joined_groups()[0].address.backend, "nccl");
}

TEST_F(GroupRoutesTest, WhatJoiningNeeds) {
  const http::Response none = Post("/init_weights_update_group", "{}");
  EXPECT_EQ(none.status, 400);
  EXPECT_THAT(none.body, HasSubstr("master_address"));
  const http::Response port =
      Post("/init_weights_update_group",
           R"({"master_address":"h","master_port":70000,"rank_offset":1,"world_size":2})");
  EXPECT_EQ(port.status, 400);
  EXPECT_THAT(port.body, HasSubstr("master_port"));
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

TEST_F(GroupRoutesTest, Leaving) {
  const http::Response reply = Post("/destroy_weights_update_group", R"({"group_name":"g"})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Message(reply), R"("Succeeded to destroy custom process group.")");
  weights_.left = Fail(Code::kNotFound, "The group to be destroyed does not exist.");
  const http::Response again = Post("/destroy_weights_update_group", "{}");
  EXPECT_EQ(again.status, 400);
  EXPECT_EQ(Message(again), R"("The group to be destroyed does not exist.")");
  weights_.left = Fail(Code::kUnavailable, "rank 1 is gone");
  EXPECT_EQ(Message(Post("/destroy_weights_update_group", "{}")),
            R"("Failed to destroy custom process group: rank 1 is gone.")");
  EXPECT_THAT(weights_.calls(),
              ElementsAre("leave g", "leave weight_update_group", "leave weight_update_group"));
}

TEST_F(GroupRoutesTest, AnUpdate) {
  const http::Response reply =
      Send(R"(,"group_name":"g","flush_cache":false,"weight_version":"4","selector":"target")");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Message(reply),
            R"("Succeeded to update parameter online. Weight version updated to 4.")");
  ASSERT_EQ(weights_.group_updates().size(), 1);
  const GroupUpdate update = weights_.group_updates()[0];
  EXPECT_EQ(update.tensors.group, "g");
  EXPECT_FALSE(update.tensors.flattened);
  ASSERT_EQ(update.tensors.announced.size(), 2);
  EXPECT_EQ(update.tensors.announced[0].name, "a");
  EXPECT_EQ(update.tensors.announced[0].dtype, tensor::Dtype::kBF16);
  EXPECT_THAT(update.tensors.announced[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(update.tensors.announced[1].dtype, tensor::Dtype::kF8E4M3);
  EXPECT_FALSE(update.flush_cache);
  EXPECT_EQ(update.weight_version, "4");
  EXPECT_EQ(update.selector, update::Selector::kTarget);
  EXPECT_EQ(update.refusal, "");
  EXPECT_THAT(engine_.calls(), IsEmpty());
}

TEST_F(GroupRoutesTest, DefaultsOfAnUpdate) {
  EXPECT_EQ(Message(Send(R"(,"load_format":null)")), R"("Succeeded to update parameter online.")");
  const GroupUpdate update = weights_.group_updates()[0];
  EXPECT_EQ(update.tensors.group, "weight_update_group");
  EXPECT_TRUE(update.flush_cache);
  EXPECT_EQ(update.weight_version, std::nullopt);
  EXPECT_EQ(update.selector, std::nullopt);
}

TEST_F(GroupRoutesTest, ABucketAndAnAbort) {
  EXPECT_EQ(Send(R"(,"load_format":"flattened_bucket","abort_all_requests":true)").status, 200);
  EXPECT_TRUE(weights_.group_updates()[0].tensors.flattened);
  EXPECT_THAT(engine_.calls(), ElementsAre(HasSubstr("abort")));
}

// What will come is known: it is received, so that the trainer's broadcast ends.
TEST_F(GroupRoutesTest, ARefusedUpdateIsReceived) {
  const http::Response reply = Send(R"(,"selector":"vl")");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("selector"));
  EXPECT_THAT(weights_.group_updates()[0].refusal, HasSubstr("selector"));
}

// What will come is not known: the group is left, so that the trainer's broadcast fails.
TEST_F(GroupRoutesTest, AGroupIsLeftWhereTheListsMakeNoSense) {
  const auto refused = [&](const std::string& body, const std::string& what) {
    const http::Response reply = Post(kPath, body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr(what));
    EXPECT_THAT(reply.body, HasSubstr("was left"));
  };
  refused(R"({"group_name":"g"})", "names");
  refused(R"({"names":["a"],"dtypes":[],"shapes":[[1]]})", "1, 0 and 1");
  refused(R"({"names":["a"],"dtypes":["int3"],"shapes":[[1]]})", "int3");
  refused(R"({"names":["a"],"dtypes":["int8"],"shapes":[[-1]]})", "shapes");
  refused(R"({"names":["a"],"dtypes":["int8"],"shapes":[[1]],"load_format":"mine"})",
          "load_format");
  EXPECT_THAT(weights_.calls(),
              ElementsAre("leave g", "leave weight_update_group", "leave weight_update_group",
                          "leave weight_update_group", "leave weight_update_group"));
  weights_.left = Fail(Code::kNotFound, "there is none");
  EXPECT_THAT(Post(kPath, "{}").body, testing::Not(HasSubstr("was left")));
}

TEST_F(GroupRoutesTest, TextsOfFailures) {
  weights_.updated = Fail(Code::kNotFound, "no.such.weight");
  EXPECT_EQ(Message(Send()), R"("Failed to update parameter online: no.such.weight")");
  weights_.updated = Fail(Code::kOutOfOrder, "must run between");
  EXPECT_EQ(Message(Send()), R"("must run between")");
  weights_.updated = Fail(Code::kUnavailable, "Failed to receive weights: Group g not in []");
  EXPECT_EQ(Message(Send()), R"("Failed to receive weights: Group g not in []")");
  EXPECT_EQ(front_.meters().failed_tensor_updates.value(), 3U);
}

// In a session the label waits for its end.
TEST_F(GroupRoutesTest, AnUpdateInASession) {
  Post("/begin_weight_update", "{}");
  const base::Json reply = ParseReply(Send(R"(,"weight_version":"3")"));
  EXPECT_EQ(At(reply, "message"), R"("Succeeded to update parameter online.")");
  EXPECT_EQ(At(reply, "weight_version_pending"), R"("3")");
}

}  // namespace
}  // namespace syncline::serve
