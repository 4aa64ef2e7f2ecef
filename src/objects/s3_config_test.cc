#include "objects/s3_config.h"

#include <gtest/gtest.h>

#include <map>

#include "base/faulty_file_system.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::FileSystem;

class S3ConfigTest : public testing::Test {
 protected:
  S3ConfigTest() {
    EXPECT_OK(FileSystem::Posix().MakeDirectories(home_ / ".aws"));
    variables_["HOME"] = home_.path();
  }

  void Write(const char* name, std::string_view text) {
    ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), home_ / name, text, false));
  }
  base::Result<S3Config> Load(const Settings& settings = {}) {
    const Environment environment = [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      if (found == variables_.end()) return std::nullopt;
      return found->second;
    };
    return LoadS3Config(FileSystem::Posix(), environment, settings);
  }

  base::TempDir home_;
  std::map<std::string, std::string> variables_;
};

constexpr char kCredentials[] = R"(# a comment
[default]
aws_access_key_id = AKIDEFAULT
aws_secret_access_key=default/secret=
; another
[ other ]
aws_access_key_id=AKIOTHER
aws_secret_access_key=other/secret
aws_session_token = token==
)";
constexpr char kConfig[] =
    "[default]\r\nregion = eu-west-1\r\ns3 =\r\n  max = 1\r\n\r\n"
    "[profile other]\nregion=eu-north-1\nendpoint_url = https://minio:9000\n"
    "[profile inline]\naws_access_key_id=AKIINLINE\n"
    "aws_secret_access_key=inline\n"
    "[profile role]\nrole_arn = arn:x\nsource_profile = default\n";

TEST_F(S3ConfigTest, NothingAnywhere) {
  ASSERT_OK_AND_ASSIGN(const S3Config config, Load());
  EXPECT_EQ(config.credentials.access_key, "");
  EXPECT_EQ(config.region, "us-east-1");
  EXPECT_EQ(config.endpoint, "");
  variables_.clear();
  EXPECT_OK(Load());
}

TEST_F(S3ConfigTest, DefaultProfile) {
  Write(".aws/credentials", kCredentials);
  Write(".aws/config", kConfig);
  ASSERT_OK_AND_ASSIGN(const S3Config config, Load());
  EXPECT_EQ(config.credentials.access_key, "AKIDEFAULT");
  EXPECT_EQ(config.credentials.secret_key, "default/secret=");
  EXPECT_EQ(config.credentials.session_token, "");
  EXPECT_EQ(config.region, "eu-west-1");
  EXPECT_EQ(config.endpoint, "");
}

TEST_F(S3ConfigTest, NamedProfile) {
  Write(".aws/credentials", kCredentials);
  Write("elsewhere", kConfig);
  variables_["AWS_PROFILE"] = "other";
  variables_["AWS_CONFIG_FILE"] = home_ / "elsewhere";
  ASSERT_OK_AND_ASSIGN(S3Config config, Load());
  EXPECT_EQ(config.credentials.access_key, "AKIOTHER");
  EXPECT_EQ(config.credentials.secret_key, "other/secret");
  EXPECT_EQ(config.credentials.session_token, "token==");
  EXPECT_EQ(config.region, "eu-north-1");
  EXPECT_EQ(config.endpoint, "https://minio:9000");
  variables_["AWS_PROFILE"] = "inline";
  ASSERT_OK_AND_ASSIGN(config, Load());
  EXPECT_EQ(config.credentials.access_key, "AKIINLINE");
  EXPECT_EQ(config.region, "us-east-1");
  variables_["AWS_PROFILE"] = "missing";
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "no profile 'missing' in " + home_.path());
  variables_["AWS_PROFILE"] = "role";
  EXPECT_ERROR(Load(), Code::kIncompatible, "profile 'role' gets its credentials by role_arn");
}

TEST_F(S3ConfigTest, EnvironmentGoesFirst) {
  Write(".aws/credentials", kCredentials);
  Write(".aws/config", kConfig);
  variables_["AWS_PROFILE"] = "other";
  variables_["AWS_ACCESS_KEY_ID"] = "AKIENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "env";
  variables_["AWS_DEFAULT_REGION"] = "default-region";
  variables_["AWS_ENDPOINT_URL"] = "http://any";
  ASSERT_OK_AND_ASSIGN(S3Config config, Load());
  EXPECT_EQ(config.credentials.access_key, "AKIENV");
  EXPECT_EQ(config.credentials.session_token, "");  // not that of the profile
  EXPECT_EQ(config.region, "default-region");
  EXPECT_EQ(config.endpoint, "http://any");
  variables_["AWS_REGION"] = "region";
  variables_["AWS_ENDPOINT_URL_S3"] = "http://s3";
  variables_["AWS_SESSION_TOKEN"] = "session";
  ASSERT_OK_AND_ASSIGN(config, Load());
  EXPECT_EQ(config.credentials.session_token, "session");
  EXPECT_EQ(config.region, "region");
  EXPECT_EQ(config.endpoint, "http://s3");
  ASSERT_OK_AND_ASSIGN(config, Load({.endpoint = "http://set", .region = "set"}));
  EXPECT_EQ(config.region, "set");
  EXPECT_EQ(config.endpoint, "http://set");
}

TEST_F(S3ConfigTest, HalfAPair) {
  variables_["AWS_ACCESS_KEY_ID"] = "AKI";
  EXPECT_ERROR(Load(), Code::kInvalidArgument,
               "the environment has an access key without a secret access key");
  variables_.erase("AWS_ACCESS_KEY_ID");
  Write(".aws/credentials", "[default]\naws_secret_access_key = hush\n");
  EXPECT_ERROR(Load(), Code::kInvalidArgument, "profile 'default' has a secret access key without");
  EXPECT_EQ(Load().error().message.find("hush"), std::string::npos);
}

TEST_F(S3ConfigTest, OtherWays) {
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/x";
  EXPECT_ERROR(Load(), Code::kIncompatible, "by AWS_WEB_IDENTITY_TOKEN_FILE");
}

TEST_F(S3ConfigTest, BrokenFiles) {
  for (const char* text : {"aws_secret_access_key = hush\n", "[default]\nhush\n"}) {
    Write(".aws/credentials", text);
    EXPECT_ERROR(Load(), Code::kCorrupt, home_ / ".aws/credentials:");
    EXPECT_EQ(Load().error().message.find("hush"), std::string::npos);
  }
  Write(".aws/credentials", std::string(2 << 20, ' '));
  EXPECT_ERROR(Load(), Code::kLimitExceeded, ".aws/credentials");
}

}  // namespace
}  // namespace syncline::objects
