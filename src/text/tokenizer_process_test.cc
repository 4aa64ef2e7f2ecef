#include "text/tokenizer_process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "text/fake_tokenizer_helper.h"

namespace syncline::text {
namespace {

using base::Code;
using base::FileSystem;
using base::Json;
using base::Result;
using std::chrono::milliseconds;
using std::chrono::seconds;

using TokenLists = std::vector<std::vector<TokenId>>;
using EncodeResult = Result<TokenLists>;
using ChatResult = Result<ChatPrompt>;

std::future<EncodeResult> Encode(TokenizerProcess& process, std::vector<std::string> texts,
                                 bool add_special_tokens = false) {
  auto promise = std::make_shared<std::promise<EncodeResult>>();
  process.Encode(std::move(texts), add_special_tokens,
                 [promise](EncodeResult result) { promise->set_value(std::move(result)); });
  return promise->get_future();
}

std::future<ChatResult> Chat(TokenizerProcess& process, Json messages, Json options = {}) {
  auto promise = std::make_shared<std::promise<ChatResult>>();
  process.ApplyChatTemplate(std::move(messages), std::move(options), [promise](ChatResult result) {
    promise->set_value(std::move(result));
  });
  return promise->get_future();
}

// Has the process ended? A zombie has; only its parent could tell it from nothing.
bool HasEnded(int pid) {
  const auto stat = ReadText(FileSystem::Posix(), fmt::format("/proc/{}/stat", pid), 4096);
  return !stat || stat->find(") Z ") != std::string::npos;
}

void AwaitEnd(int pid) {
  while (!HasEnded(pid)) std::this_thread::sleep_for(milliseconds(5));
}

class TokenizerProcessTest : public testing::Test {
 protected:
  TokenizerProcessTest() {
    const auto status = WriteTextAtomically(FileSystem::Posix(), script_, kFakeTokenizerHelper,
                                            /*durable=*/false);
    EXPECT_TRUE(status.has_value());
  }

  // `start`: how the helper starts.
  TokenizerOptions Options(std::string start = "well") const {
    return {.command = {"python3", "-S", "-E", script_},
            .directory = std::move(start),
            .restart_interval = milliseconds(0)};
  }
  std::unique_ptr<TokenizerProcess> Start(std::string start = "well") const {
    return TokenizerProcess::Start(Options(std::move(start)));
  }

  const base::TempDir directory_;
  const std::string script_ = directory_ / "helper.py";
};

TEST_F(TokenizerProcessTest, EncodesAndChats) {
  const auto process = Start();
  ASSERT_OK_AND_ASSIGN(const TokenLists tokens, Encode(*process, {"ab", "", "\u20AC"}).get());
  EXPECT_EQ(tokens, (TokenLists{{'a', 'b'}, {}, {0x20AC}}));
  EXPECT_EQ(Encode(*process, {"a"}, true).get().value(), (TokenLists{{1, 'a'}}));
  EXPECT_EQ(Encode(*process, {}).get().value(), TokenLists{});
  const Json messages = Json::Array{Json::Object{{"role", "user"}}, Json::Object{}};
  ASSERT_OK_AND_ASSIGN(const ChatPrompt prompt,
                       Chat(*process, messages, Json::Object{{"tools", Json::Array{}}}).get());
  EXPECT_EQ(prompt.text, R"([[{"role":"user"},{}],{"tools":[]}])");
  EXPECT_EQ(prompt.tokens, (std::vector<TokenId>{2}));
  EXPECT_EQ(Chat(*process, messages).get().value().text, R"([[{"role":"user"},{}],{}])");
}

TEST_F(TokenizerProcessTest, RequestsWaitForTheStart) {
  const auto process = Start("slow");
  auto first = Encode(*process, {"a"});
  auto second = Encode(*process, {"b"});
  EXPECT_OK(first.get());
  EXPECT_EQ(second.get().value(), (TokenLists{{'b'}}));
}

TEST_F(TokenizerProcessTest, AnErrorOfARequestIsNotADeath) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  const int pid = process->pid();
  EXPECT_ERROR(Encode(*process, {"refuse"}).get(), Code::kInvalidArgument, "the template says no");
  EXPECT_OK(Encode(*process, {"a"}).get());
  EXPECT_EQ(process->pid(), pid);
}

TEST_F(TokenizerProcessTest, TheHelperIsKilledAtWork) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  const int pid = process->pid();
  auto at_work = Encode(*process, {"hang"});
  auto behind = Encode(*process, {"b"});
  while (!std::filesystem::exists(script_ + ".hangs")) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_ERROR(at_work.get(), Code::kUnavailable, "it ended (signal 9)");
  const EncodeResult result = behind.get();  // it may not have been sent yet
  if (!result) EXPECT_ERROR(result, Code::kUnavailable, "signal 9");
  EXPECT_OK(Encode(*process, {"c"}).get());
  EXPECT_NE(process->pid(), pid);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);  // reaped
}

TEST_F(TokenizerProcessTest, TheHelperIsKilledAtRest) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  const int pid = process->pid();
  kill(pid, SIGKILL);
  while (process->pid() == pid) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(process->pid(), 0);
  EXPECT_OK(Encode(*process, {"b"}).get());
}

TEST_F(TokenizerProcessTest, ARequestThatKillsTheHelperTakesOnlyThoseInFlightAlong) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  std::vector<std::future<EncodeResult>> results;
  results.push_back(Encode(*process, {"die"}));
  for (int i = 0; i < 100; ++i) results.push_back(Encode(*process, {"b"}));
  EXPECT_ERROR(results.front().get(), Code::kUnavailable, "exit status 3");
  std::size_t failed = 0;
  for (std::size_t i = 1; i < results.size(); ++i) failed += results[i].get() ? 0 : 1;
  EXPECT_LT(failed, 20U);
}

TEST_F(TokenizerProcessTest, NonsenseEndsTheHelper) {
  for (const char* nonsense :
       {"wrong id", "no id", "no tokens", "wrong count", "no list", "negative", "large",
        "error is no text", "not JSON", "endless", "print"}) {
    SCOPED_TRACE(nonsense);
    const auto process = Start();
    EXPECT_ERROR(Encode(*process, {nonsense}).get(), Code::kUnavailable, "it sent nonsense: ");
    EXPECT_EQ(Encode(*process, {"a"}).get().value(), (TokenLists{{'a'}}));
  }
  const auto process = Start();
  EXPECT_ERROR(Encode(*process, {"half"}).get(), Code::kUnavailable, "exit status 3");
  EXPECT_OK(Encode(*process, {"a"}).get());
}

TEST_F(TokenizerProcessTest, AReplyThatNobodyAskedForEndsTheHelper) {
  const auto process = Start();
  EXPECT_EQ(Encode(*process, {"twice"}).get().value().size(), 1U);
  const int pid = process->pid();
  if (pid != 0) AwaitEnd(pid);
  EXPECT_OK(Encode(*process, {"a"}).get());
}

TEST_F(TokenizerProcessTest, AHelperThatReadsNoMore) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"deaf"}).get());
  EXPECT_ERROR(Encode(*process, {"a"}).get(), Code::kUnavailable, "it reads no more");
  EXPECT_OK(Encode(*process, {"a"}).get());
}

TEST_F(TokenizerProcessTest, AProgramThatIsNoHelper) {
  for (const char* script : {"echo nonsense; sleep 100", "echo", "exit 5", "cat /dev/zero",
                             "head -c 100000 /dev/urandom"}) {
    SCOPED_TRACE(script);
    const auto process =
        TokenizerProcess::Start({.command = {"/bin/sh", "-c", script}, .directory = "unused"});
    EXPECT_ERROR(Encode(*process, {"a"}).get(), Code::kUnavailable, "tokenizer helper: it ");
  }
}

TEST_F(TokenizerProcessTest, AProgramThatDoesNotExist) {
  const auto process = TokenizerProcess::Start(
      {.command = {"/nonexistent/program"}, .restart_interval = milliseconds(0)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_ERROR(Encode(*process, {"a"}).get(), Code::kUnavailable,
                 "cannot start /nonexistent/program");
  }
  EXPECT_EQ(process->pid(), 0);
}

TEST_F(TokenizerProcessTest, TheNextStartKeepsTheInterval) {
  auto process = TokenizerProcess::Start(
      {.command = {"/nonexistent/program"}, .restart_interval = std::chrono::hours(1)});
  EXPECT_ERROR(Encode(*process, {"a"}).get(), Code::kUnavailable, "cannot start");
  auto waits = Encode(*process, {"a"});
  EXPECT_EQ(waits.wait_for(milliseconds(50)), std::future_status::timeout);
  process.reset();
  EXPECT_ERROR(waits.get(), Code::kCancelled, "shutting down");
}

TEST_F(TokenizerProcessTest, AHelperThatCannotStart) {
  EXPECT_ERROR(Encode(*Start("error"), {"a"}).get(), Code::kUnavailable,
               "there is no tokenizer.json");
  EXPECT_ERROR(Encode(*Start("exit"), {"a"}).get(), Code::kUnavailable, "exit status 7");
  EXPECT_ERROR(Encode(*Start("not ready"), {"a"}).get(), Code::kUnavailable, "not ready");
  TokenizerOptions options = Options("never ready");
  options.start_timeout = milliseconds(100);
  const auto process = TokenizerProcess::Start(options);
  auto first = Encode(*process, {"a"});
  auto second = Chat(*process, Json::Array{});
  EXPECT_ERROR(first.get(), Code::kUnavailable, "not ready after 100 ms");
  EXPECT_ERROR(second.get(), Code::kUnavailable, "not ready after 100 ms");
}

TEST_F(TokenizerProcessTest, AHelperThatNeverAnswers) {
  TokenizerOptions options = Options();
  options.timeout = seconds(2);
  const auto process = TokenizerProcess::Start(options);
  ASSERT_OK(Encode(*process, {"a"}).get());
  const int pid = process->pid();
  auto late = Encode(*process, {"hang"});
  EXPECT_ERROR(late.get(), Code::kTimeout, "did not answer within 2000 ms");
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);
  EXPECT_OK(Encode(*process, {"a"}).get());
}

TEST_F(TokenizerProcessTest, TheEndCancelsWhatIsInFlight) {
  auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  const int pid = process->pid();
  std::vector<std::future<EncodeResult>> results;
  for (int i = 0; i < 30; ++i) results.push_back(Encode(*process, {"hang"}));
  process.reset();
  for (auto& result : results) EXPECT_ERROR(result.get(), Code::kCancelled, "shutting down");
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(TokenizerProcessTest, TheEndDuringTheStart) {
  for (const char* start : {"well", "never ready", "exit"}) {
    auto process = Start(start);
    auto result = Encode(*process, {"hang"});
    process.reset();
    const EncodeResult got = result.get();
    ASSERT_FALSE(got.has_value());
    EXPECT_TRUE(got.error().code == Code::kCancelled || got.error().code == Code::kUnavailable);
  }
}

TEST_F(TokenizerProcessTest, CallbacksMayMakeRequests) {
  auto process = Start();
  std::promise<EncodeResult> last;
  process->Encode({"a"}, false, [&](const EncodeResult& first) {
    EXPECT_OK(first);
    process->Encode({"b"}, false, [&](EncodeResult second) { last.set_value(std::move(second)); });
  });
  EXPECT_EQ(last.get_future().get().value(), (TokenLists{{'b'}}));
  // At the end too.
  std::promise<EncodeResult> cancelled;
  TokenizerProcess* raw = process.get();
  process->Encode({"hang"}, false, [&](const EncodeResult&) {
    raw->Encode({"b"}, false, [&](EncodeResult second) { cancelled.set_value(std::move(second)); });
  });
  process.reset();
  EXPECT_ERROR(cancelled.get_future().get(), Code::kCancelled, "shutting down");
}

TEST_F(TokenizerProcessTest, LargeMessagesPassBothWays) {
  const auto process = Start();
  const std::string large(1 << 20, 'x');
  auto first = Encode(*process, {large});
  auto second = Encode(*process, {large, "y"});
  EXPECT_EQ(first.get().value().at(0).size(), large.size());
  EXPECT_EQ(second.get().value().at(1), (std::vector<TokenId>{'y'}));
}

TEST_F(TokenizerProcessTest, BadRequestsDoNotReachTheHelper) {
  const auto process = Start();
  auto large = Encode(*process, {std::string((64 << 20) + 1, 'x')});
  auto broken = Encode(*process, {"\xFF"});
  auto nested = Chat(*process, Json::Array{Json("\xC3")});
  EXPECT_ERROR(large.get(), Code::kLimitExceeded, "at most 67108864");
  EXPECT_ERROR(broken.get(), Code::kInvalidArgument, "not UTF-8");
  EXPECT_ERROR(nested.get(), Code::kInvalidArgument, "not UTF-8");
  EXPECT_OK(Encode(*process, {"a"}).get());
}

TEST_F(TokenizerProcessTest, ManyRequestsOfManyThreads) {
  const auto process = Start();
  std::atomic<int> answered = 0;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 250; ++i) {
      const std::string text = fmt::format("{}/{}", seed, random());
      if (random() % 3 == 0) {
        const Json messages = Json::Array{Json(text)};
        EXPECT_EQ(Chat(*process, messages).get().value().text,
                  fmt::format(R"([["{}"],{{}}])", text));
      } else {
        const TokenLists expected = {{text.begin(), text.end()}};
        EXPECT_EQ(Encode(*process, {text}).get().value(), expected);
      }
      ++answered;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 1000);
}

TEST_F(TokenizerProcessTest, EachRequestIsAnsweredOnceWhateverHappens) {
  const auto process = Start();
  std::vector<std::future<EncodeResult>> results;
  std::vector<std::string> texts;
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    texts.push_back(random() % 40 == 0 ? "die" : fmt::format("text {}", i));
    results.push_back(Encode(*process, {texts.back()}));
    if (i % 5 == 0) results.back().wait();
    if (const int pid = process->pid(); i % 60 == 50 && pid != 0) kill(pid, SIGKILL);
  }
  std::size_t good = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const EncodeResult result = results[i].get();
    if (result) {
      EXPECT_EQ(*result, (TokenLists{{texts[i].begin(), texts[i].end()}}));
      ++good;
    } else {
      EXPECT_EQ(result.error().code, Code::kUnavailable) << result.error().message;
    }
  }
  EXPECT_GT(good, 200U);
}

// The targets of the descriptors that a process has open.
std::set<std::string> Descriptors(int pid) {
  std::set<std::string> targets;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    std::error_code error;
    targets.insert(std::filesystem::read_symlink(entry.path(), error).string());
  }
  return targets;
}

TEST_F(TokenizerProcessTest, TheHelperInheritsOnlyItsOwnPipes) {
  std::array<int, 2> ours{};
  ASSERT_EQ(pipe(ours.data()), 0);  // not closed on exec
  const auto first = Start();
  const auto second = Start();
  ASSERT_OK(Encode(*first, {"a"}).get());
  ASSERT_OK(Encode(*second, {"a"}).get());
  const std::string link = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", ours[0]));
  ASSERT_TRUE(link.starts_with("pipe:"));
  for (const TokenizerProcess* process : {first.get(), second.get()}) {
    EXPECT_FALSE(Descriptors(process->pid()).contains(link));
    EXPECT_EQ(getpgid(process->pid()), process->pid());
  }
  const std::string pipe_of_first =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/0", first->pid()));
  EXPECT_FALSE(Descriptors(second->pid()).contains(pipe_of_first));
  close(ours[0]);
  close(ours[1]);
}

TEST_F(TokenizerProcessTest, NoOtherChildInheritsThePipes) {
  const auto process = Start();
  ASSERT_OK(Encode(*process, {"a"}).get());
  const std::string other = directory_ / "descriptors";
  ASSERT_EQ(std::system(fmt::format("ls -l /proc/self/fd > {}", other).c_str()), 0);
  ASSERT_OK_AND_ASSIGN(const std::string listing, ReadText(FileSystem::Posix(), other, 1 << 16));
  ASSERT_THAT(listing, testing::HasSubstr(other));
  for (const char* end : {"0", "1"}) {
    const std::string link =
        std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", process->pid(), end));
    EXPECT_THAT(listing, testing::Not(testing::HasSubstr(link)));
  }
}

// Runs in a fresh copy of this program, which then dies without any clean-up.
TEST_F(TokenizerProcessTest, TheHelperEndsWithThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The copy makes a fixture of its own; the environment tells it where the first one looks.
  const char* variable = "SYNCLINE_TEST_PID_FILE";
  setenv(variable, (directory_ / "pid").c_str(), /*replace=*/0);
  const std::string file = std::getenv(variable);
  EXPECT_EXIT(
      {
        const auto process = Start();
        if (!Encode(*process, {"a"}).get()) _exit(1);
        (void)WriteTextAtomically(FileSystem::Posix(), file, std::to_string(process->pid()), false);
        raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  ASSERT_OK_AND_ASSIGN(const std::string pid, ReadText(FileSystem::Posix(), file, 100));
  AwaitEnd(std::stoi(pid));
  unsetenv(variable);
}

}  // namespace
}  // namespace syncline::text
