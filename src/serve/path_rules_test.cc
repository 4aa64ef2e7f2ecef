#include "serve/path_rules.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/result_matchers.h"
#include "serve/scene.h"

namespace syncline::serve {
namespace {

using base::Code;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The place holds "models" (the root, with "one" in it) and "outside".
class PathRulesTest : public Scene {
 protected:
  void SetUp() override {
    Scene::SetUp();
    for (const char* name : {"models/one", "outside"}) {
      std::filesystem::create_directories(place_ / name);
    }
    std::filesystem::create_directory_symlink(place_ / "outside", place_ / "models/link");
    Options options;
    options.model = "/models/launch";
    options.allowed_roots = {place_ / "models"};
    ASSERT_OK_AND_ASSIGN(rooted_, RootedFilesOf(options));
    front_.paths = PathRules(*rooted_, {"s3://bucket/runs", "https://host:8443/store/"});
  }

  base::Status Source(const std::string& source) { return front_.paths.CheckSource("it", source); }

  void ExpectRefused(const std::string& path, const std::string& body, std::string_view field) {
    const http::Response reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(At(ParseReply(reply), "success"), "false");
    EXPECT_THAT(At(ParseReply(reply), "message"), HasSubstr(field));
    EXPECT_THAT(weights_.calls(), IsEmpty()) << body;
  }

  base::TempDir place_;
  std::unique_ptr<base::RootedFileSystem> rooted_;
};

TEST_F(PathRulesTest, WithoutRulesAllIsAllowed) {
  const PathRules rules;
  EXPECT_OK(rules.CheckPath("it", "/etc"));
  EXPECT_OK(rules.CheckSource("it", "s3://any/thing"));
  ASSERT_OK_AND_ASSIGN(const auto files, RootedFilesOf({}));
  EXPECT_EQ(files, nullptr);
}

TEST_F(PathRulesTest, SourcesOnThisHostAreUnderTheRoots) {
  EXPECT_OK(Source(place_ / "models/store"));
  EXPECT_OK(Source("file://" + (place_ / "models/store")));
  EXPECT_OK(Source("FILE://localhost" + (place_ / "models/store")));
  for (const std::string& bad :
       {place_ / "outside", place_ / "models/link", place_ / "models/../outside",
        "file://" + (place_ / "outside"), "file://" + (place_ / "models/%2e%2e/outside"),
        std::string("store")}) {
    EXPECT_ERROR(Source(bad), Code::kPermissionDenied, place_ / "models");
  }
  for (const char* odd : {"file://elsewhere/x", "file:///%00", "file://x"}) {
    EXPECT_ERROR(Source(odd), Code::kInvalidArgument, odd);
  }
}

TEST_F(PathRulesTest, UrlsBeginWithWhatIsAllowed) {
  for (const char* good : {"s3://bucket/runs", "s3://bucket/runs/", "s3://bucket/runs/7?region=x",
                           "https://host:8443/store/a", "s3://bucket/runs?endpoint=y"}) {
    EXPECT_OK(Source(good));
  }
  for (const char* bad :
       {"s3://bucket/runs2", "s3://bucket", "s3://bucket/runs/../other",
        "s3://bucket/runs/%2E%2e/o", "s3://bucket/runs/..%2fother", "s3://bucket/runs/..",
        "s3://bucket/runs/%zz", "s3://bucket/runs/..\\other", "S3://bucket/runs",
        "http://host:8443/store/a", "https://host:8443", "https://host:8443@evil/store/",
        "https://user@host:8443/store/a", "https://host:8443/store", "ftp://host/"}) {
    EXPECT_ERROR(Source(bad), Code::kPermissionDenied, "s3://bucket/runs");
  }
  front_.paths = PathRules(*rooted_, {});
  EXPECT_ERROR(Source("s3://bucket/runs?secret=1"), Code::kPermissionDenied, "--allowed-source");
  EXPECT_THAT(Source("https://u:secret@h/?secret").error().message, Not(HasSubstr("secret")));
}

TEST_F(PathRulesTest, Br48RequestsThatNameWhatIsOutside) {
  const auto quoted = [](const std::string& path) { return "\"" + path + "\""; };
  const std::string inside = quoted(place_ / "models/one");
  for (const std::string& path :
       {place_ / "outside", place_ / "models/link", place_ / "models/link/x",
        place_ / "models/../outside", place_ / "missing", std::string("/"), std::string("..")}) {
    const std::string outside = quoted(path);
    ExpectRefused("/update_weights_from_disk", "{\"model_path\":" + outside + "}", "model_path: ");
    ExpectRefused("/pull_weights",
                  "{\"target_version\":1,\"source_dir\":" + inside +
                      ",\"local_checkpoint_dir\":" + outside + "}",
                  "local_checkpoint_dir: ");
    ExpectRefused("/pull_weights",
                  "{\"target_version\":1,\"source_dir\":" + outside +
                      ",\"local_checkpoint_dir\":" + inside + "}",
                  "source_dir: ");
    const http::Response digest = Get("/weights_digest?version=1&source=" + path);
    EXPECT_EQ(digest.status, 403) << digest.body;
    EXPECT_THAT(digest.body, HasSubstr("source: "));
  }
}

TEST_F(PathRulesTest, RequestsThatNameWhatIsInside) {
  const std::string one = place_ / "models/one";
  EXPECT_EQ(Post("/update_weights_from_disk", "{\"model_path\":\"" + one + "\"}").status, 200);
  EXPECT_EQ(Post("/pull_weights",
                 "{\"target_version\":1,\"source_dir\":\"s3://bucket/runs/7\","
                 "\"local_checkpoint_dir\":\"" +
                     one + "\"}")
                .status,
            200);
  EXPECT_THAT(weights_.calls(),
              ElementsAre("update " + one + " - true", "pull s3://bucket/runs/7 " + one + " 1"));
}

TEST_F(PathRulesTest, ARefusedUpdateAbortsNothing) {
  ExpectRefused("/update_weights_from_disk", R"({"model_path":"/etc","abort_all_requests":true})",
                "model_path: ");
  EXPECT_THAT(engine_.calls(), IsEmpty());
}

TEST_F(PathRulesTest, TheCheckpointOfTheStartMayBeServedAgain) {
  EXPECT_EQ(Post("/update_weights_from_disk", R"({"model_path":"/models/launch"})").status, 200);
}

}  // namespace
}  // namespace syncline::serve
