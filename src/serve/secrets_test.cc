#include "serve/secrets.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <map>

#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::serve {
namespace {

using base::Code;
using base::FileSystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class SecretsTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    const std::string path = directory_ / name;
    EXPECT_OK(WriteTextAtomically(FileSystem::Posix(), path, text, false));
    return path;
  }
  base::Status Read() {
    return ReadKeys(
        FileSystem::Posix(),
        [this](const char* name) {
          const auto found = variables_.find(name);
          return found == variables_.end() ? std::string() : found->second;
        },
        options_);
  }

  base::TempDir directory_;
  std::map<std::string, std::string> variables_;
  Options options_;
};

TEST_F(SecretsTest, WithoutASourceThereIsNoKey) {
  variables_["SYNCLINE_API_KEY"] = "";
  ASSERT_OK(Read());
  EXPECT_TRUE(options_.keys.none());
}

TEST_F(SecretsTest, FromFilesAndTheEnvironment) {
  variables_ = {{"SYNCLINE_API_KEY", "from the environment"}, {"SYNCLINE_ADMIN_API_KEY", "hidden"}};
  for (const char* end : {"", "\n", "\r\n"}) {
    options_.admin_api_key_file = Write("key", std::string("of-admins") + end);
    ASSERT_OK(Read());
    EXPECT_EQ(options_.keys.api, "from the environment");
    EXPECT_EQ(options_.keys.admin, "of-admins");
  }
}

TEST_F(SecretsTest, TheCommandLineComesBeforeTheEnvironment) {
  variables_ = {{"SYNCLINE_API_KEY", "old"}, {"SYNCLINE_ADMIN_API_KEY", "old"}};
  options_.api_key = "new";
  ASSERT_OK(Read());
  EXPECT_EQ(options_.keys.api, "new");
  EXPECT_EQ(options_.keys.admin, "old");
}

TEST_F(SecretsTest, WhatCannotBeAKey) {
  const std::string secret = "sesame";
  for (const std::string& bad :
       {std::string(), std::string("\n"), " " + secret, secret + " ", secret + "\n\n",
        secret + "\n" + secret, secret + '\0', std::string(5000, 's')}) {
    options_ = {};
    options_.admin_api_key_file = Write("key", bad);
    const base::Status read = Read();
    ASSERT_FALSE(read) << bad.size();
    EXPECT_THAT(read.error().message, HasSubstr("key"));
    EXPECT_THAT(read.error().message, Not(HasSubstr(secret)));
    EXPECT_TRUE(options_.keys.none());
  }
  options_ = {};
  options_.api_key = "";  // what a shell makes of a variable that is not set
  EXPECT_ERROR(Read(), Code::kInvalidArgument, "--api-key: the key is empty");
  options_.api_key = "a";
  options_.api_key_file = Write("key", "b");
  EXPECT_ERROR(Read(), Code::kInvalidArgument, "--api-key and --api-key-file");
  options_ = {};
  options_.api_key_file = directory_ / "missing";
  EXPECT_ERROR(Read(), Code::kNotFound, "missing");
}

TEST_F(SecretsTest, OtherRanksGetNoSecrets) {
  EXPECT_THAT(WithoutSecrets({"--model", "/m", "--api-key", "a", "--admin-api-key=b", "--port", "1",
                              "--ssl-keyfile-password", "c", "--api-key=d=e", "--admin-api-key"}),
              ElementsAre("--model", "/m", "--port", "1"));
}

TEST_F(SecretsTest, WhatTheKernelShowsIsOverwritten) {
  std::vector<std::string> texts = {"engine", "--api-key", "aaa",      "--admin-api-key=bbb",
                                    "--port", "1",         "--api-key"};
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  setenv("SYNCLINE_API_KEY", "ccc", 1);
  HideSecrets(argv.data());
  EXPECT_THAT(texts, ElementsAre("engine", "--api-key", "***", "--admin-api-key=***", "--port", "1",
                                 "--api-key"));
  EXPECT_EQ(getenv("SYNCLINE_API_KEY"), nullptr);
}

}  // namespace
}  // namespace syncline::serve
