#include "serve/options.h"

#include <gmock/gmock.h>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "serve/tokenizer_command.h"

namespace syncline::serve {
namespace {

using base::Code;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

TEST(OptionsTest, Defaults) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({"--model", "/m"}, "1.2.3"));
  const Options& options = line.options;
  EXPECT_EQ(options.model, "/m");
  EXPECT_EQ(options.tokenizer, "/m");
  EXPECT_EQ(options.served_model_name, "/m");
  EXPECT_EQ(options.host, "127.0.0.1");  // BR-46: only this machine unless asked
  EXPECT_EQ(options.port, 30000);
  EXPECT_EQ(options.weight_version, "default");
  EXPECT_EQ(options.shutdown_timeout, 5);
  EXPECT_FALSE(options.skip_tokenizer);
}

TEST(OptionsTest, SpellingsOfSglang) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({"--model-path=/m",
                                                                 "--tokenizer-path",
                                                                 "/t",
                                                                 "--served-model-name",
                                                                 "x",
                                                                 "--host",
                                                                 "0.0.0.0",
                                                                 "--port",
                                                                 "0",
                                                                 "--weight-version",
                                                                 "3",
                                                                 "--max-running-requests",
                                                                 "4",
                                                                 "--max-total-tokens",
                                                                 "1000",
                                                                 "--kv-cache-bytes",
                                                                 "99",
                                                                 "--chunked-prefill-size",
                                                                 "64",
                                                                 "--context-length",
                                                                 "128",
                                                                 "--threads",
                                                                 "2",
                                                                 "--skip-tokenizer-init",
                                                                 "--exit-with-parent",
                                                                 "--api-key",
                                                                 "k",
                                                                 "--admin-api-key",
                                                                 "a",
                                                                 "--random-seed",
                                                                 "9",
                                                                 "--log-level",
                                                                 "error",
                                                                 "--shutdown-timeout",
                                                                 "0.5",
                                                                 "--tp-size",
                                                                 "1",
                                                                 "--tokenizer-command",
                                                                 "python3 helper.py"},
                                                                "1"));
  const Options& options = line.options;
  EXPECT_EQ(options.model, "/m");
  EXPECT_EQ(options.tokenizer, "/t");
  EXPECT_EQ(options.served_model_name, "x");
  EXPECT_EQ(options.host, "0.0.0.0");
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.weight_version, "3");
  EXPECT_EQ(options.max_running_requests, 4U);
  EXPECT_EQ(options.max_total_tokens, 1000U);
  EXPECT_EQ(options.kv_cache_bytes, 99U);
  EXPECT_EQ(options.chunked_prefill_size, 64U);
  EXPECT_EQ(options.context_length, 128U);
  EXPECT_EQ(options.threads, 2U);
  EXPECT_TRUE(options.skip_tokenizer);
  EXPECT_TRUE(options.exit_with_parent);
  EXPECT_EQ(options.api_key, "k");
  EXPECT_EQ(options.admin_api_key, "a");
  EXPECT_EQ(options.random_seed, 9U);
  EXPECT_EQ(options.log_level, "error");
  EXPECT_EQ(options.shutdown_timeout, 0.5);
  EXPECT_EQ(options.tokenizer_command, "python3 helper.py");
}

TEST(OptionsTest, WrongUsage) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{},
                                                {"--model"},
                                                {"--model", "/m", "--frobnicate"},
                                                {"--model", "/m", "--port", "65536"},
                                                {"--model", "/m", "--tp", "0"},
                                                {"--model", "/m", "--tp", "4", "--ep", "3"},
                                                {"--model", "/m", "--tp", "3", "--nnodes", "2"},
                                                {"--model", "/m", "--node-rank", "1"},
                                                {"--model", "/m", "--tp", "2", "--nnodes", "2"},
                                                {"--model", "/m", "--tp", "2", "--rank", "2"},
                                                {"--model", "/m", "--max-running-requests", "0"},
                                                {"--model", "/m", "--log-level", "loud"},
                                                {"--model", "/m", "--session", "maybe"},
                                                {"--model", "/m", "--session-timeout", "-1"},
                                                {"--model", "/m", "--undo-memory", "-1"},
                                                {"--model", "/m", "--undo-memory", "1X"},
                                                {"--model", "/m", "--undo-memory", "99999999999G"},
                                                {"--model", "/m", "stray"}}) {
    EXPECT_ERROR(ParseCommandLine(wrong, "1"), Code::kInvalidArgument, "--help");
  }
}

TEST(OptionsTest, UpdatesFromTensors) {
  ASSERT_OK_AND_ASSIGN(const CommandLine plain, ParseCommandLine({"--model", "/m"}, "1"));
  EXPECT_EQ(plain.options.session, "optional");
  EXPECT_EQ(plain.options.session_timeout, 0);
  EXPECT_FALSE(plain.options.await_weights);
  EXPECT_EQ(plain.options.undo_memory, kUnlimited);
  EXPECT_EQ(plain.options.max_body, std::uint64_t{4} << 30);
  EXPECT_THAT(
      ToText(OptionsJson(plain.options)),
      HasSubstr(
          R"("session":"optional","session_timeout":0,"transfer_timeout":300,"undo_memory":null)"));
  ASSERT_OK_AND_ASSIGN(
      const CommandLine line,
      ParseCommandLine({"--model", "/m", "--session", "required", "--session-timeout", "0.5",
                        "--undo-memory", "3G", "--max-body=512M"},
                       "1"));
  EXPECT_EQ(line.options.session, "required");
  EXPECT_EQ(line.options.session_timeout, 0.5);
  EXPECT_EQ(line.options.undo_memory, std::uint64_t{3} << 30);
  EXPECT_EQ(line.options.max_body, std::uint64_t{512} << 20);
  EXPECT_THAT(ToText(OptionsJson(line.options)), HasSubstr(R"("undo_memory":3221225472)"));
  for (const auto& [text, bytes] : std::vector<std::pair<const char*, std::uint64_t>>{
           {"0", 0}, {"1000", 1000}, {"5K", 5 << 10}, {"5kb", 5 << 10}, {"1 MiB", 1 << 20}}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine sized,
                         ParseCommandLine({"--model", "/m", "--undo-memory", text}, "1"));
    EXPECT_EQ(sized.options.undo_memory, bytes) << text;
  }
}

// A rank starts others with its own options and some more.
TEST(OptionsTest, TheLastOfRepeatedOptionsCounts) {
  ASSERT_OK_AND_ASSIGN(
      const CommandLine line,
      ParseCommandLine({"--model", "/m", "--tp-size", "4", "--ep", "2", "--nnodes", "2",
                        "--dist-init-addr", "node0:1", "--rank", "1", "--rendezvous", "node0:2"},
                       "1"));
  EXPECT_EQ(line.options.tp, 4U);
  EXPECT_EQ(line.options.ep, 2U);
  EXPECT_EQ(line.options.nodes, 2U);
  EXPECT_EQ(line.options.rank, 1U);
  EXPECT_EQ(line.options.rendezvous, "node0:2");
  const std::string shown = ToText(OptionsJson(line.options));
  EXPECT_THAT(shown, HasSubstr(R"("tp_size":4,"ep_size":2)"));
  EXPECT_THAT(shown, HasSubstr(R"("nnodes":2,"node_rank":0)"));
}

TEST(OptionsTest, HelpAndVersion) {
  ASSERT_OK_AND_ASSIGN(const CommandLine help, ParseCommandLine({"--help"}, "1.2.3"));
  EXPECT_THAT(help.text.value_or(""), HasSubstr("Example:\n  syncline serve --model"));
  ASSERT_OK_AND_ASSIGN(const CommandLine version, ParseCommandLine({"--version"}, "1.2.3"));
  EXPECT_EQ(version.text, "1.2.3\n");
}

TEST(OptionsTest, KeysAreNotShown) {
  Options options;
  options.model = "/m";
  options.keys = {.api = "secret1", .admin = "secret2"};
  const std::string shown = ToText(OptionsJson(options));
  EXPECT_THAT(shown, HasSubstr(R"("model_path":"/m")"));
  EXPECT_THAT(shown, testing::Not(HasSubstr("secret")));
}

class TokenizerCommandTest : public testing::Test {
 protected:
  std::vector<std::string> Find(TokenizerSearch search) {
    search.program_directory = tree_ / "build/bin";
    return TokenizerCommand(files_, search);
  }
  void Touch(const std::string& path) {
    ASSERT_OK(files_.MakeDirectories(path.substr(0, path.rfind('/'))));
    ASSERT_OK(WriteTextAtomically(files_, path, "", false));
  }

  base::FileSystem& files_ = base::FileSystem::Posix();
  base::TempDir tree_;
};

TEST_F(TokenizerCommandTest, WhatIsGivenWins) {
  EXPECT_THAT(Find({.command = " my  helper --fast ", .python = "/py"}),
              ElementsAre("my", "helper", "--fast"));
}

TEST_F(TokenizerCommandTest, InstalledPackage) {
  EXPECT_THAT(Find({}), ElementsAre("python3", "-m", "syncline.tokenizer_helper"));
  EXPECT_THAT(Find({.python = "/py"}), ElementsAre("/py", "-m", "syncline.tokenizer_helper"));
}

TEST_F(TokenizerCommandTest, SourceTree) {
  Touch(tree_ / "build/bin/syncline-engine");
  Touch(tree_ / ".venv/bin/python");
  Touch(tree_ / "python/syncline/tokenizer_helper.py");
  EXPECT_THAT(Find({}), ElementsAre(EndsWith("/.venv/bin/python"),
                                    EndsWith("/python/syncline/tokenizer_helper.py")));
  EXPECT_THAT(Find({.python = "/py"}),
              ElementsAre("/py", EndsWith("/python/syncline/tokenizer_helper.py")));
}

}  // namespace
}  // namespace syncline::serve
