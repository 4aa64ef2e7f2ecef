// Updates from disk and pulls.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "serve/fingerprint.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class WeightRoutesTest : public Scene {
 protected:
  void WriteShard(const std::string& content) {
    ASSERT_OK_AND_ASSIGN(const auto file, FileSystem::Posix().Open(directory_ / "model.safetensors",
                                                                   base::OpenMode::kCreate));
    ASSERT_OK(file->WriteAt(base::AsBytes(content), 0));
  }
  std::string Body(const std::string& version, const std::string& more = "") {
    return fmt::format(R"({{"model_path":"{}","weight_version":"{}"{}}})", directory_.path(),
                       version, more);
  }
  http::Response Update(const std::string& version) {
    return Post("/update_weights_from_disk", Body(version));
  }

  base::TempDir directory_;
};

TEST_F(WeightRoutesTest, AnUpdate) {
  const http::Response reply =
      Post("/update_weights_from_disk",
           R"({"model_path":"/m/2","weight_version":"2","load_format":null,"is_async":false,
               "keep_pause":false,"token_step":0,"manifest":null,"torch_empty_cache":true})");
  EXPECT_EQ(reply.status, 200);
  const Json json = ParseReply(reply);
  EXPECT_EQ(At(json, "success"), "true");
  EXPECT_EQ(At(json, "message"),
            R"("Succeeded to update model weights. Weight version updated to 2.")");
  EXPECT_EQ(At(json, "num_paused_requests"), "0");
  EXPECT_EQ(At(json, "stage_seconds"), "0.5");
  EXPECT_EQ(At(json, "apply_seconds"), "0.25");
  EXPECT_EQ(At(json, "joined"), "false");
  EXPECT_THAT(weights_.calls(), ElementsAre("update /m/2 2 true"));
  EXPECT_EQ(At(ParseReply(Get("/model_info")), "model_path"), R"("/m/2")");
  EXPECT_EQ(At(ParseReply(Get("/model_info")), "served_model_name"), R"("tiny")");
  EXPECT_EQ(front_.meters().updates.value(), 1U);
  EXPECT_EQ(front_.meters().update_stage_seconds.sum(), 0.5);
  EXPECT_EQ(front_.meters().update_apply_seconds.sum(), 0.25);
}

TEST_F(WeightRoutesTest, WithoutALabelTheMessageHasNone) {
  const Json json =
      ParseReply(Post("/update_weights_from_disk", R"({"model_path":"/m","flush_cache":false})"));
  EXPECT_EQ(At(json, "message"), R"("Succeeded to update model weights.")");
  EXPECT_THAT(weights_.calls(), ElementsAre("update /m - false"));
}

TEST_F(WeightRoutesTest, AnUpdateMayAbortAllFirst) {
  Post("/update_weights_from_disk", R"({"model_path":"/m","abort_all_requests":true})");
  EXPECT_THAT(engine_.calls(), ElementsAre("abort all"));
}

TEST_F(WeightRoutesTest, AFailureSaysThatTheOldWeightsStay) {
  weights_.hold = true;
  const auto exchange = Start("POST", "/update_weights_from_disk", R"({"model_path":"/m"})");
  Settle();
  weights_.Finish(Fail(Code::kCorrupt, "model.safetensors: is truncated"));
  const http::Response reply = exchange->Wait();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(ParseReply(reply), "success"), "false");
  EXPECT_EQ(At(ParseReply(reply), "message"),
            R"("Failed to update weights: model.safetensors: is truncated.\nRolling back to )"
            R"(original weights.")");
  EXPECT_EQ(front_.meters().failed_updates.value(), 1U);
}

TEST_F(WeightRoutesTest, BadUpdatesNeverReachTheWeights) {
  for (const auto& [body, part] : std::vector<std::pair<const char*, const char*>>{
           {"{}", "model_path: is required"},
           {R"({"model_path":3})", "model_path: expected a string, got 3"},
           {R"({"model_path":"a\u0000/etc"})", "model_path: expected a path"},
           {R"({"model_path":"/m","weight_version":3})", "weight_version: expected a string"},
           {R"({"model_path":"/m","load_format":"dummy"})", "load_format: expected"},
           {R"({"model_path":"/m","flush_cache":"maybe"})", "flush_cache: expected a boolean"}}) {
    const http::Response reply = Post("/update_weights_from_disk", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(part)) << body;
  }
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

// 8 requests for version 5 at once are one load and 8 successes, 7 of them joined; one for
// version 6 meanwhile waits its turn.
TEST_F(WeightRoutesTest, BR49RequestsForTheSameUpdateShareOneLoad) {
  WriteShard("five");
  weights_.hold = true;
  std::vector<std::shared_ptr<FakeExchange>> five;
  for (int i = 0; i < 8; ++i) {
    five.push_back(Start("POST", "/update_weights_from_disk", Body("5")));
  }
  const auto six = Start("POST", "/update_weights_from_disk", Body("6"));
  Settle();
  EXPECT_THAT(weights_.calls(), ElementsAre(fmt::format("update {} 5 true", directory_.path()),
                                            fmt::format("update {} 6 true", directory_.path())));
  weights_.Finish();
  int joined = 0;
  for (const auto& exchange : five) {
    const http::Response reply = exchange->Wait();
    EXPECT_EQ(reply.status, 200);
    joined += At(ParseReply(reply), "joined") == "true" ? 1 : 0;
  }
  EXPECT_EQ(joined, 7);
  EXPECT_EQ(At(ParseReply(six->Wait()), "joined"), "false");
  EXPECT_EQ(front_.meters().joined_updates.value(), 7U);
  EXPECT_EQ(front_.meters().updates.value(), 2U);
}

TEST_F(WeightRoutesTest, BR49TheSameVersionAgainIsThereAlready) {
  WriteShard("five");
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  const http::Response again = Update("5");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(At(ParseReply(again), "already_loaded"), "true");
  EXPECT_THAT(At(ParseReply(again), "message"), HasSubstr("Already at weight version 5"));
  EXPECT_THAT(weights_.calls(), SizeIs(1));
}

TEST_F(WeightRoutesTest, BR49ASharedFailureIsEverybodysAndTheNextRequestStartsAfresh) {
  WriteShard("five");
  weights_.hold = true;
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(Start("POST", "/update_weights_from_disk", Body("5")));
  }
  Settle();
  weights_.Finish(Fail(Code::kIo, "disk on fire"));
  for (const auto& exchange : all) {
    const http::Response reply = exchange->Wait();
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr("disk on fire"));
  }
  weights_.hold = false;
  EXPECT_EQ(Update("5").status, 200);
  EXPECT_THAT(weights_.calls(), SizeIs(2));
}

TEST_F(WeightRoutesTest, BR49PullsAreSharedToo) {
  weights_.hold = true;
  const char* body =
      R"({"source_dir":"/s","local_checkpoint_dir":"/d","target_version":"5","prefix":"x"})";
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 0; i < 3; ++i) all.push_back(Start("POST", "/pull_weights", body));
  Settle();
  EXPECT_THAT(weights_.calls(), ElementsAre("pull /s /d 5"));
  weights_.Finish();
  EXPECT_THAT(all[0]->Wait().body,
              HasSubstr(R"({"success":true,"message":"Success.","joined":false,"hosts":[)"));
  EXPECT_THAT(all[2]->Wait().body,
              HasSubstr(R"({"success":true,"message":"Success.","joined":true,"hosts":[)"));
}

// The label of an update that other files, another path or another label follow is not enough.
TEST_F(WeightRoutesTest, BR01FilesThatChangedAreReadAgain) {
  WriteShard("five");
  const std::string shard = directory_ / "model.safetensors";
  struct stat before = {};
  ASSERT_EQ(stat(shard.c_str(), &before), 0);
  Update("5");
  WriteShard("FIVE");  // as large as before
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, shard.c_str(), times, 0), 0);
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  ASSERT_OK(WriteTextAtomically(FileSystem::Posix(), shard, "five", false));  // renamed over it
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  EXPECT_THAT(weights_.calls(), SizeIs(3));
}

TEST_F(WeightRoutesTest, BR01OnlyTheLastUpdateIsThereAlready) {
  WriteShard("five");
  Update("5");
  Update("6");
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  Post("/update_weight_version", R"({"new_version":"x"})");
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  Post("/update_weights_from_disk", R"({"model_path":"/other"})");
  Post("/update_weight_version", R"({"new_version":"5"})");
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "false");
  EXPECT_EQ(At(ParseReply(Update("5")), "already_loaded"), "true");
}

TEST_F(WeightRoutesTest, BR34AClientThatGoesAwayDoesNotStopItsUpdate) {
  weights_.hold = true;
  const auto gone = Start("POST", "/update_weights_from_disk", R"({"model_path":"/m"})");
  Settle();
  gone->Disconnect();
  weights_.Finish();
  weights_.hold = false;
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Post("/update_weights_from_disk", R"({"model_path":"/n"})").status, 200);
}

TEST_F(WeightRoutesTest, PullsThatFail) {
  weights_.hold = true;
  const auto exchange =
      Start("POST", "/pull_weights",
            R"({"source_dir":"/s","local_checkpoint_dir":"/d","target_version":5})");
  Settle();
  weights_.Finish(Fail(Code::kNotFound, "versions 1 to 4 are missing"));
  const http::Response reply = exchange->Wait();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(ParseReply(reply), "message"), R"("versions 1 to 4 are missing")");
  EXPECT_EQ(front_.meters().failed_pulls.value(), 1U);
  for (const char* body : {"{}", R"({"source_dir":"/s","local_checkpoint_dir":"/d"})",
                           R"({"source_dir":"/s","local_checkpoint_dir":"/d","target_version":-1})",
                           R"({"source_dir":"","local_checkpoint_dir":"/d","target_version":1})"}) {
    EXPECT_EQ(Post("/pull_weights", body).status, 400) << body;
  }
  EXPECT_THAT(weights_.calls(), SizeIs(1));
}

// One host's failure names the host, and says where all of them are.
TEST_F(WeightRoutesTest, PullsOverSeveralHosts) {
  const char* body = R"({"source_dir":"/s","local_checkpoint_dir":"/d","target_version":5})";
  weights_.other_hosts = {{.host = "10.0.0.2", .node_rank = 1, .outcome = {{}, 5}}};
  Json reply = ParseReply(Post("/pull_weights", body));
  EXPECT_EQ(At(reply, "message"), R"("Success.")");
  EXPECT_EQ(
      At(reply, "hosts"),
      R"([{"host":"localhost","node_rank":0,"success":true,"message":"Success.","version":5},)"
      R"({"host":"10.0.0.2","node_rank":1,"success":true,"message":"Success.","version":5}])");
  weights_.other_hosts.push_back({.host = "10.0.0.3",
                                  .node_rank = 2,
                                  .outcome = {Fail(Code::kNoSpace, "/d: no space left"), 4}});
  const http::Response failed = Post("/pull_weights", body);
  EXPECT_EQ(failed.status, 400);
  EXPECT_EQ(At(ParseReply(failed), "message"),
            R"("host 10.0.0.3 (node 2): /d: no space left. Now host localhost (node 0) is at )"
            R"(version 5, host 10.0.0.2 (node 1) is at version 5, host 10.0.0.3 (node 2) is at )"
            R"(version 4.")");
  weights_.other_hosts = {
      {.host = "10.0.0.3", .node_rank = 1, .outcome = {Fail(Code::kUnavailable, "gone"), {}}}};
  EXPECT_THAT(At(ParseReply(Post("/pull_weights", body)), "message"),
              HasSubstr("host 10.0.0.3 (node 1) is without a whole version"));
}

TEST_F(WeightRoutesTest, Digests) {
  weights_.digests = update::DigestReport{
      .weight_version = "7", .model_path = "/m", .tensors = {{"a", {1, 2}}}, .derived = {"", "ab"}};
  EXPECT_EQ(Get("/weights_digest").body,
            R"({"success":true,"weight_version":"7","model_path":"/m","digests":)"
            R"({"a":"00000000000000020000000000000001"},"derived":["","ab"]})");
  weights_.digests->comparison = {.source = "/s", .version = 7, .identity = "id", .equal = 1};
  Json reply = ParseReply(Get("/weights_digest?version=7&source=/s"));
  EXPECT_EQ(At(reply, "equal"), "true");
  EXPECT_EQ(At(reply, "compared_with"), R"({"source":"/s","version":7,"identity":"id"})");
  weights_.digests->comparison->unknown = {"b"};
  EXPECT_EQ(At(ParseReply(Get("/weights_digest?version=7")), "equal"), "false");
  weights_.digests->comparison->unknown = {};
  weights_.digests->comparison->different = {"a"};
  reply = ParseReply(Get("/weights_digest?version=7"));
  EXPECT_EQ(At(reply, "equal"), "false");
  EXPECT_EQ(At(reply, "different"), R"(["a"])");
  EXPECT_THAT(weights_.calls(),
              ElementsAre("digests - ", "digests 7 /s", "digests 7 ", "digests 7 "));
  EXPECT_EQ(Get("/weights_digest?version=seven").status, 400);
  weights_.digests = Fail(Code::kNotFound, "no version 9");
  EXPECT_EQ(Get("/weights_digest?version=9").status, 400);
}

TEST(FingerprintTest, FilesBelowCountAndLinksAreFollowed) {
  const base::TempDir directory;
  const base::TempDir elsewhere;
  ASSERT_OK(WriteTextAtomically(FileSystem::Posix(), elsewhere / "blob", "a", false));
  ASSERT_EQ(symlink((elsewhere / "blob").c_str(), (directory / "model.safetensors").c_str()), 0);
  ASSERT_OK_AND_ASSIGN(const std::string first,
                       Fingerprint(base::FileSystem::Posix(), directory.path()));
  ASSERT_OK_AND_ASSIGN(const std::string same,
                       Fingerprint(base::FileSystem::Posix(), directory.path()));
  EXPECT_EQ(first, same);
  ASSERT_OK(WriteTextAtomically(FileSystem::Posix(), elsewhere / "blob", "b", false));
  ASSERT_OK_AND_ASSIGN(const std::string other,
                       Fingerprint(base::FileSystem::Posix(), directory.path()));
  EXPECT_NE(first, other);
  ASSERT_EQ(symlink(directory.path().c_str(), (directory / "circle").c_str()), 0);
  EXPECT_OK(Fingerprint(base::FileSystem::Posix(), directory.path()));
  EXPECT_ERROR(Fingerprint(base::FileSystem::Posix(), directory / "gone"), Code::kNotFound, "gone");
}

}  // namespace
}  // namespace syncline::serve
