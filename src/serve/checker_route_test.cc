// Snapshot, reset, compare and checksums of the live weights.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/result_matchers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using checker::CheckHash;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using update::CheckRequest;
using update::Selector;
using Action = update::CheckRequest::Action;

constexpr char kPath[] = "/weights_checker";

class CheckerRouteTest : public Scene {
 protected:
  CheckRequest Last() {
    const std::vector<CheckRequest> all = weights_.checks();
    return all.empty() ? CheckRequest() : all.back();
  }
};

TEST_F(CheckerRouteTest, Defaults) {
  for (const char* body : {"", "{}", R"({"action":null,"selector":null,"skip_tensor_list":null,
                                         "allow_quant_error":null,"hash":null,"more":1})"}) {
    for (const char* method : {"GET", "POST"}) {
      EXPECT_EQ(Start(method, kPath, body)->Wait().status, 200) << method << body;
      EXPECT_EQ(Last().action, Action::kChecksum);
      EXPECT_EQ(Last().selector, Selector::kAll);
      EXPECT_FALSE(Last().options.allow_quant_error);
      EXPECT_EQ(Last().options.hash, CheckHash::kDevice);
      EXPECT_THAT(Last().options.skip, IsEmpty());
    }
  }
  EXPECT_EQ(weights_.checks().size(), 6U);
}

TEST_F(CheckerRouteTest, Fields) {
  Post(kPath, R"({"action":"compare","selector":"draft","allow_quant_error":"true",
                  "skip_tensor_list":["a","b"],"hash":"sha256"})");
  EXPECT_EQ(Last().action, Action::kCompare);
  EXPECT_EQ(Last().selector, Selector::kDraft);
  EXPECT_TRUE(Last().options.allow_quant_error);
  EXPECT_EQ(Last().options.hash, CheckHash::kSha256);
  EXPECT_THAT(Last().options.skip, ElementsAre("a", "b"));
  Post(kPath, R"({"action":"snapshot","hash":"device"})");
  EXPECT_EQ(Last().action, Action::kSnapshot);
  Post(kPath, R"({"action":"reset_tensors"})");
  EXPECT_EQ(Last().action, Action::kReset);
}

TEST_F(CheckerRouteTest, WrongFieldsReachNothing) {
  for (const auto& [body, part] : std::vector<std::pair<const char*, const char*>>{
           {R"({"selector":"none"})", "selector: expected"},
           {R"({"hash":"md5"})", R"(hash: expected \"device\" or \"sha256\", got \"md5\")"},
           {R"({"skip_tensor_list":"a"})", "skip_tensor_list: expected a list"},
           {R"({"skip_tensor_list":[1]})", "skip_tensor_list: item 0: expected a string"},
           {R"({"allow_quant_error":"x"})", "allow_quant_error: expected a boolean"},
           {R"({"action":1})", "action: expected a string"}}) {
    const http::Response reply = Post(kPath, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(part)) << body;
  }
  const http::Response reply = Post(kPath, R"({"action":"reset"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"Unsupported action='reset'"})");
  EXPECT_THAT(weights_.calls(), IsEmpty());
}

TEST_F(CheckerRouteTest, SnapshotAndReset) {
  EXPECT_EQ(Post(kPath, R"({"action":"snapshot"})").body,
            R"({"success":true,"message":"Success."})");
  weights_.checked = update::CheckReport{.skipped = {"rope.inv_freq"}};
  EXPECT_EQ(Post(kPath, R"({"action":"reset_tensors"})").body,
            R"({"success":true,"message":"Success.","skipped":["rope.inv_freq"]})");
}

TEST_F(CheckerRouteTest, Compare) {
  weights_.checked = update::CheckReport{.compared = 9, .skipped = {"s"}};
  http::Response reply = Post(kPath, R"({"action":"compare"})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body,
            R"({"success":true,"message":"Success.","compared":9,"put_back":[],"skipped":["s"]})");
  weights_.checked =
      update::CheckReport{.message = "check tensor equality failed:\nname=w max_abs_err=1",
                          .compared = 9,
                          .put_back = {"w"}};
  reply = Post(kPath, R"({"action":"compare"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body,
            R"({"success":false,"message":"check tensor equality failed:\nname=w max_abs_err=1",)"
            R"("compared":9,"put_back":["w"],"skipped":[]})");
  weights_.checked = Fail(Code::kOutOfOrder, "compare: there is no snapshot");
  reply = Post(kPath, R"({"action":"compare"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"success":false,"message":"compare: there is no snapshot"})");
}

// The checksum of all is that of contract: SHA-256 over names and hashes in order of names.
TEST_F(CheckerRouteTest, Checksums) {
  update::CheckReport report;
  report.ranks = {
      {{.role = "target",
        .checksums = {.tensors = {{"a.weight", "aafe3691ff04321d"}},
                      .derived = {{"a.derived", "1111111111111111"}}}},
       {.role = "draft", .checksums = {.tensors = {{"draft.a.weight", "04f91fe4319d3c4e"}}}}},
      {{.role = "target", .checksums = {.tensors = {{"b", "0000000000000000"}, {"a", "2"}}}}}};
  weights_.checked = report;
  const http::Response reply = Get(kPath);
  EXPECT_EQ(reply.status, 200);
  const Json json = ParseReply(reply);
  EXPECT_EQ(At(json, "message"), R"("Success.")");
  EXPECT_EQ(At(json, "ranks.0.checksums"),
            R"({"a.weight":"aafe3691ff04321d","draft.a.weight":"04f91fe4319d3c4e"})");
  EXPECT_EQ(At(json, "ranks.0.derived_checksums"), R"({"a.derived":"1111111111111111"})");
  EXPECT_EQ(At(json, "ranks.0.per_gpu_checksum"),
            R"("660ad45ebe48f923b0566b91a35676bb2869ca8000b8da00209f0b55767929fb")");
  EXPECT_EQ(At(json, "ranks.0.parallelism_info"),
            R"([{"role":"target","tp_rank":0,"tp_size":2,"dp_rank":0,"dp_size":1,"pp_rank":0,)"
            R"("pp_size":1,"rank":0,"size":2},{"role":"draft","tp_rank":0,"tp_size":2,)"
            R"("dp_rank":0,"dp_size":1,"pp_rank":0,"pp_size":1,"rank":0,"size":2}])");
  EXPECT_EQ(At(json, "ranks.1.checksums"), R"({"b":"0000000000000000","a":"2"})");
  EXPECT_EQ(At(json, "ranks.1.per_gpu_checksum"),
            R"("33d2ce04ecca91b60ba20cd85c8f2166ac237b27bf3232b49c2c3c1727ff0fdc")");
  EXPECT_EQ(At(json, "ranks.1.parallelism_info.0.rank"), "1");
  EXPECT_EQ(At(json, "per_engine_checksum"),
            R"("768fb018a0a8e3661f2adfa3bfe4978f65fab86dc04b0de48b9ea7eae64c3f75")");
  EXPECT_EQ(At(json, "skipped"), "[]");
  EXPECT_EQ(At(json, "compared"), "-");
}

TEST_F(CheckerRouteTest, NamesOfTwoRunnersMustDiffer) {
  update::CheckReport report;
  report.ranks = {{{.role = "target", .checksums = {.tensors = {{"draft.a", "1"}}}},
                   {.role = "draft", .checksums = {.tensors = {{"draft.a", "1"}}}}}};
  weights_.checked = report;
  const http::Response reply = Get(kPath);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(At(ParseReply(reply), "message"),
            R"("checksum key collision: two tensors are called draft.a")");
}

TEST_F(CheckerRouteTest, BR49ResetWeightsAreNoLongerThoseOfTheLastUpdate) {
  UpdateToFive();
  Post(kPath, R"({"action":"snapshot"})");
  Get(kPath);
  Post(kPath, R"({"action":"compare"})");
  EXPECT_EQ(UpdateToFive(), "true");
  Post(kPath, R"({"action":"reset_tensors"})");
  EXPECT_EQ(UpdateToFive(), "false");
  EXPECT_EQ(UpdateToFive(), "true");
  weights_.checked = update::CheckReport{.message = "differ", .put_back = {"w"}};
  Post(kPath, R"({"action":"compare"})");
  EXPECT_EQ(UpdateToFive(), "false");
}

// Which of them came first is not known, so the next update is read.
TEST_F(CheckerRouteTest, BR49AnUpdateDuringWhichWeightsWereResetIsNotRemembered) {
  UpdateToFive();
  Post(kPath, R"({"action":"reset_tensors"})");
  weights_.hold = true;
  const auto update =
      Start("POST", "/update_weights_from_disk",
            fmt::format(R"({{"weight_version":"5","model_path":"{}"}})", version_five_.path()));
  Settle();
  Post(kPath, R"({"action":"reset_tensors"})");
  weights_.Finish();
  EXPECT_EQ(update->Wait().status, 200);
  weights_.hold = false;
  EXPECT_EQ(UpdateToFive(), "false");
}

}  // namespace
}  // namespace syncline::serve
