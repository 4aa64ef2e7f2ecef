// Ranks as real processes: shells, and the program of test_child.cc.
#include "ranks/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

#include "base/file.h"
#include "base/temp_dir.h"
#include "ranks/socket.h"
#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

std::vector<std::string> Environment() {
  std::vector<std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  return all;
}

RankProgram Shell(std::uint32_t rank, const std::string& script) {
  return {.rank = rank, .path = "/bin/sh", .arguments = {"-c", script}, .environment = {}};
}

// The program of test_child.cc, with this program's environment: that of sanitizers, for one.
RankProgram Child(std::uint32_t rank, std::vector<std::string> arguments) {
  return {.rank = rank,
          .path = SYNCLINE_RANKS_TEST_CHILD,
          .arguments = std::move(arguments),
          .environment = Environment()};
}

// Everything that a launcher reports.
class Exits {
 public:
  Launcher::OnExit Listener() {
    return [this](const RankExit& exit) {
      const std::scoped_lock lock(mutex_);
      exits_[exit.rank] = exit;
      wake_.notify_all();
    };
  }
  RankExit Of(std::uint32_t rank) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(wake_.wait_for(lock, kForever, [&] { return exits_.contains(rank); }));
    return exits_[rank];
  }
  std::size_t count() {
    const std::scoped_lock lock(mutex_);
    return exits_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::uint32_t, RankExit> exits_;
};

bool IsThere(std::int64_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }

// Readable when that process has ended, whoever its parent is; not open on a kernel without pidfds.
Descriptor Watch(std::int64_t pid) {
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}
// Waits for it.
bool HasEnded(const Descriptor& handle) {
  pollfd state = {.fd = handle.get(), .events = POLLIN, .revents = 0};
  return poll(&state, 1, 60'000) == 1;
}

// The number in a file that another process writes.
std::int64_t AwaitNumber(const std::string& path) {
  for (const Deadline end = steady_clock::now() + kForever; steady_clock::now() < end;) {
    std::ifstream file(path);
    std::int64_t number = 0;
    std::string rest;
    if (file >> number >> rest && rest == "end") return number;
    (void)poll(nullptr, 0, 5);
  }
  ADD_FAILURE() << "nobody writes " << path;
  return 0;
}

TEST(Launch, TellsHowEachChildEnds) {
  Exits exits;
  ASSERT_OK_AND_ASSIGN(const auto launcher,
                       Launcher::Start({Shell(1, "exit 0"), Shell(2, "exit 3"),
                                        Shell(3, "kill -9 $$"), Shell(4, "kill -TERM $$")},
                                       exits.Listener()));
  const std::vector<std::int64_t> pids = launcher->pids();
  ASSERT_EQ(pids.size(), 4);
  const auto name = [&](std::uint32_t rank) {
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(pids[rank - 1]) + ") ";
  };
  EXPECT_EQ(exits.Of(1).text, name(1) + "ended with exit status 0");
  EXPECT_TRUE(exits.Of(1).ok);
  EXPECT_EQ(exits.Of(2).text, name(2) + "ended with exit status 3");
  EXPECT_FALSE(exits.Of(2).ok);
  EXPECT_EQ(exits.Of(3).text, name(3) + "was killed by signal 9");
  EXPECT_FALSE(exits.Of(3).ok);
  EXPECT_EQ(exits.Of(4).text, name(4) + "was killed by signal 15");
  EXPECT_EQ(exits.Of(4).pid, pids[3]);
  for (const std::int64_t pid : pids) EXPECT_FALSE(IsThere(pid));  // reaped
}

TEST(Launch, OfAProgramThatIsNotThereStartsNobody) {
  const base::TempDir directory;
  const std::string path = directory / "pid";
  Exits exits;
  EXPECT_ERROR(
      Launcher::Start({Shell(1, "echo $$ end > " + path + "; exec sleep 1000"),
                       {.rank = 2, .path = "/no/such/program", .arguments = {}, .environment = {}}},
                      exits.Listener()),
      Code::kNotFound, "rank 2: cannot start /no/such/program");
  std::ifstream file(path);
  std::int64_t pid = 0;
  if (file >> pid) {
    EXPECT_FALSE(IsThere(pid));
  }
  EXPECT_EQ(exits.count(), 0);
}

TEST(Launch, GivesArgumentsAndEnvironmentAndNothingElse) {
  const base::TempDir directory;
  const std::string path = directory / "out";
  // A descriptor that is not closed on exec, as other libraries leave them behind.
  const int leak = dup(STDERR_FILENO);
  ASSERT_GT(leak, 2);
  RankProgram program = Shell(1, "echo \"$1|$NAME|$HOME|$(cat)\" > $0; ls /proc/self/fd >> $0");
  program.arguments.push_back(path);
  program.arguments.push_back("an argument");
  program.environment = {"NAME=value", "PATH=/bin:/usr/bin"};
  Exits exits;
  ASSERT_OK_AND_ASSIGN(const auto launcher, Launcher::Start({program}, exits.Listener()));
  EXPECT_TRUE(exits.Of(1).ok);
  close(leak);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       base::ReadText(base::FileSystem::Posix(), path, 1000));
  EXPECT_EQ(text, "an argument|value||\n0\n1\n2\n3\n");  // 3 is the directory that ls reads
}

TEST(Launch, StopEndsThePoliteAndTheStubborn) {
  const base::TempDir directory;
  Exits exits;
  ASSERT_OK_AND_ASSIGN(
      const auto launcher,
      Launcher::Start({Shell(1, "trap 'echo 1 end > " + (directory / "polite") +
                                    "; exit 0' TERM; echo 1 end > " + (directory / "1") +
                                    "; while true; do sleep 0.01; done"),
                       Shell(2, "trap '' TERM; echo 1 end > " + (directory / "2") +
                                    "; while true; do sleep 0.01; done"),
                       // A child of its own, which would be an orphan.
                       Shell(3, "(trap '' TERM; exec sleep 1000) & echo $! end > " +
                                    (directory / "3") + "; wait")},
                      exits.Listener()));
  (void)AwaitNumber(directory / "1");
  (void)AwaitNumber(directory / "2");
  const std::int64_t grandchild = AwaitNumber(directory / "3");
  const Descriptor handle = Watch(grandchild);
  launcher->Stop(milliseconds(300));
  EXPECT_TRUE(!handle.open() || HasEnded(handle));
  for (const std::int64_t pid : launcher->pids()) EXPECT_FALSE(IsThere(pid));
  EXPECT_EQ(AwaitNumber(directory / "polite"), 1);
  EXPECT_EQ(exits.count(), 0);
  launcher->Stop(milliseconds(0));
}

TEST(Launch, DestructionLeavesNobodyBehind) {
  std::vector<std::int64_t> pids;
  {
    ASSERT_OK_AND_ASSIGN(
        const auto launcher,
        Launcher::Start({Shell(1, "exec sleep 1000"), Shell(2, "exec sleep 1000")}, nullptr));
    pids = launcher->pids();
    for (const std::int64_t pid : pids) EXPECT_TRUE(IsThere(pid));
  }
  for (const std::int64_t pid : pids) EXPECT_FALSE(IsThere(pid));
}

TEST(ExitWithParent, DoesNothingWithoutALauncher) {
  ASSERT_EQ(unsetenv(kParentVariable), 0);
  EXPECT_OK(ExitWithParent());
}

TEST(ExitWithParent, NoticesThatTheParentIsGoneAlready) {
  ASSERT_EQ(setenv(kParentVariable, "999999999", 1), 0);
  EXPECT_ERROR(ExitWithParent(), Code::kUnavailable, "(pid 999999999) is gone");
  ASSERT_EQ(setenv(kParentVariable, "12x", 1), 0);
  EXPECT_ERROR(ExitWithParent(), Code::kInvalidArgument, "is \"12x\", expected a pid");
  ASSERT_EQ(unsetenv(kParentVariable), 0);
}

TEST(ExitWithParent, NoRankOutlivesALauncherThatIsKilled) {
  const base::TempDir directory;
  const std::string path = directory / "pid";
  Exits exits;
  ASSERT_OK_AND_ASSIGN(const auto launcher,
                       Launcher::Start({Child(1, {"launches", path})}, exits.Listener()));
  const std::int64_t grandchild = AwaitNumber(path);
  const Descriptor handle = Watch(grandchild);
  if (!handle.open()) GTEST_SKIP() << "this kernel has no pidfds";
  kill(static_cast<pid_t>(launcher->pids()[0]), SIGKILL);
  EXPECT_TRUE(HasEnded(handle));
  EXPECT_THAT(exits.Of(1).text, HasSubstr("was killed by signal 9"));
}

// A leader with three followers in processes of their own.
struct Processes {
  Processes(LeaderOptions options, const std::string& expected) {
    options.on_failure = failure.Listener();
    leader = Leader::Listen(std::move(options)).value();
    std::vector<RankProgram> programs;
    for (std::uint32_t rank = 1; rank < 4; ++rank) {
      programs.push_back(
          Child(rank, {"follows", std::to_string(rank), std::to_string(leader->port()), expected}));
    }
    launcher = Launcher::Start(std::move(programs), exits.Listener()).value();
    EXPECT_OK(leader->Join());
  }
  void Signal(std::uint32_t rank, int signal) {
    kill(static_cast<pid_t>(launcher->pids()[rank - 1]), signal);
  }
  Exits exits;
  Heard<Error> failure;
  std::unique_ptr<Leader> leader;
  std::unique_ptr<Launcher> launcher;
};

TEST(Processes, FormAGroupAndEndWithIt) {
  Processes group(TestLeaderOptions(4), "");
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(group.leader->peers()[rank - 1].pid, group.launcher->pids()[rank - 1]);
  }
  Heard<Answers> heard;
  group.leader->CommandAndAsk(1, {}, heard.Listener());
  const Answers answers = heard.Get();
  ASSERT_EQ(answers.size(), 3);
  EXPECT_EQ(Text(answers[2].value()), "3");
  group.leader->Shutdown();
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(group.exits.Of(rank).text, HasSubstr("ended with exit status 0"));
  }
  EXPECT_FALSE(group.leader->failure());
}

TEST(BR37, AKilledRankEndsTheWaitOfAllAndANewGroupCanBeFormed) {
  {
    Processes group(TestLeaderOptions(4), "rank 1 (host 127.0.0.1, pid ");
    Heard<Answers> heard;
    group.leader->Ask(std::array<std::uint32_t, 3>{1, 2, 3}, 7, {}, heard.Listener());
    group.Signal(1, SIGKILL);
    const std::string expected = "rank 1 (host 127.0.0.1, pid " +
                                 std::to_string(group.launcher->pids()[0]) +
                                 ") is gone: connection closed";
    EXPECT_EQ(group.failure.Get().message, expected);
    for (const auto& answer : heard.Get()) EXPECT_EQ(answer.error().message, expected);
    EXPECT_THAT(group.exits.Of(1).text, HasSubstr("was killed by signal 9"));
    for (std::uint32_t rank = 2; rank < 4; ++rank) {
      EXPECT_THAT(group.exits.Of(rank).text, HasSubstr("ended with exit status 1"));
    }
  }
  Processes again(TestLeaderOptions(4), "");
  Heard<Answers> heard;
  again.leader->Ask(std::array<std::uint32_t, 1>{2}, 1, Bytes("x"), heard.Listener());
  EXPECT_EQ(Text(heard.Get()[0].value()), "x");
  again.leader->Shutdown();
}

TEST(BR37, AProcessThatGivesUpAndEndsIsNotJustGone) {
  Heard<Error> failure;
  LeaderOptions options = TestLeaderOptions(2);
  options.on_failure = failure.Listener();
  ASSERT_OK_AND_ASSIGN(const auto leader, Leader::Listen(options));
  Exits exits;
  ASSERT_OK_AND_ASSIGN(
      const auto launcher,
      Launcher::Start({Child(1, {"gives-up", "1", std::to_string(leader->port())})},
                      exits.Listener()));
  ASSERT_OK(leader->Join());
  EXPECT_THAT(failure.Get().message, HasSubstr(") has failed: no model"));
  EXPECT_THAT(exits.Of(1).text, HasSubstr("ended with exit status 1"));
}

TEST(BR37, AStoppedRankEndsTheWaitOfAll) {
  LeaderOptions options = TestLeaderOptions(4);
  options.silence = milliseconds(2000);
  Processes group(options, "rank 2 (host 127.0.0.1, pid ");
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 3>{1, 2, 3}, 7, {}, heard.Listener());
  group.Signal(2, SIGSTOP);
  const std::string text = group.failure.Get().message;
  EXPECT_THAT(text, HasSubstr("rank 2 (host 127.0.0.1, pid "));
  EXPECT_THAT(text, HasSubstr(") has been silent for 2."));
  EXPECT_EQ(heard.Get()[0].error().message, text);
  EXPECT_THAT(group.exits.Of(1).text, HasSubstr("ended with exit status 1"));
  EXPECT_THAT(group.exits.Of(3).text, HasSubstr("ended with exit status 1"));
  group.launcher->Stop(milliseconds(0));  // a stopped process too
}

// In a network that the child makes for itself.
void RunInItsOwnNetwork(const std::string& what) {
  Exits exits;
  ASSERT_OK_AND_ASSIGN(const auto launcher, Launcher::Start({Child(1, {what})}, exits.Listener()));
  const RankExit exit = exits.Of(1);
  if (exit.text.ends_with("exit status 77")) GTEST_SKIP() << "no network of our own can be made";
  EXPECT_TRUE(exit.ok) << exit.text;
}

TEST(BR38, RanksMeetAtALinkLocalAddress) { RunInItsOwnNetwork("meets-at-link-local"); }

TEST(OwnHost, WithoutAWayIsAnError) { RunInItsOwnNetwork("finds-no-way"); }

}  // namespace
}  // namespace syncline::ranks
