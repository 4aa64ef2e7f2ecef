// How the launcher works:
//
// 1. One thread starts all children, and lives until the launcher ends: the kernel's parent-death
//    signal goes with the thread that started a child.
// 2. The thread waits for any child to end (pidfds; a short period where the kernel has none), and
//    reaps it under mutex_, so that a pid that is signalled is never one that was given away.
// 3. Stop() marks the end, sends SIGTERM, waits, and sends SIGKILL to what is left. The thread
//    reaps. Ends that come after the mark are not reported.
#include "ranks/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/spawn.h"
#include "ranks/socket.h"

namespace syncline::ranks {

const char* const kParentVariable = "SYNCLINE_PARENT_PID";

namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using std::chrono::milliseconds;

constexpr int kPeriodWithoutPidfd = 50;  // ms

// The pid.
Result<int> StartProcess(const RankProgram& program) {
  base::SpawnOptions options = {.command = program.arguments, .environment = program.environment};
  options.command.insert(options.command.begin(), program.path);
  std::erase_if(*options.environment, [](std::string_view text) {
    return text.starts_with(fmt::format("{}=", kParentVariable));
  });
  options.environment->push_back(fmt::format("{}={}", kParentVariable, getpid()));
  const Result<int> pid = base::Spawn(options);
  if (!pid) return base::Annotate(pid.error(), fmt::format("rank {}", program.rank));
  return pid;
}

// status: as waitpid gives it; nothing if somebody else has taken it.
RankExit Describe(std::uint32_t rank, pid_t pid, std::optional<int> status) {
  RankExit exit{.rank = rank, .pid = pid, .ok = false, .text = {}};
  std::string how = "has ended";
  if (status && WIFEXITED(*status)) {
    exit.ok = WEXITSTATUS(*status) == 0;
    how = fmt::format("ended with exit status {}", WEXITSTATUS(*status));
  } else if (status && WIFSIGNALED(*status)) {
    how = fmt::format("was killed by signal {}", WTERMSIG(*status));
  }
  exit.text = fmt::format("rank {} (pid {}) {}", rank, pid, how);
  return exit;
}

class ProcessLauncher final : public Launcher {
 public:
  explicit ProcessLauncher(OnExit on_exit)
      : on_exit_(std::move(on_exit)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  ~ProcessLauncher() override {
    Stop(milliseconds(0));
    if (thread_.joinable()) thread_.join();
  }

  Status Run(std::vector<RankProgram> programs) {
    std::promise<Status> started;
    std::future<Status> outcome = started.get_future();
    thread_ = std::thread([this, &started, programs = std::move(programs)] {
      started.set_value(StartAll(programs));
      Watch();
    });
    return outcome.get();
  }

  std::vector<std::int64_t> pids() const override {
    std::vector<std::int64_t> pids;
    pids.reserve(children_.size());
    for (const Child& child : children_) pids.push_back(child.pid);
    return pids;
  }

  void Stop(milliseconds grace) override {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    SignalAll(SIGTERM);
    const auto all_gone = [this] { return std::ranges::none_of(children_, &Child::alive); };
    if (!gone_.wait_for(lock, grace, all_gone)) SignalAll(SIGKILL);
    gone_.wait(lock, all_gone);
    const std::uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

 private:
  struct Child {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    Descriptor ended;   // readable when it has ended; not open where the kernel has no pidfd
    bool alive = true;  // not reaped; guarded by mutex_
  };

  // On the thread. Nothing is shared yet.
  Status StartAll(const std::vector<RankProgram>& programs) {
    std::vector<Child> children;
    Status status;
    for (const RankProgram& program : programs) {
      const Result<int> pid = StartProcess(program);
      if (!pid) {
        status = std::unexpected(pid.error());
        break;
      }
      children.push_back({.rank = program.rank,
                          .pid = *pid,
                          .ended = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0))),
                          .alive = true});
    }
    const std::scoped_lock lock(mutex_);
    children_ = std::move(children);
    return status;
  }

  void Watch() {
    while (true) {
      {
        const std::scoped_lock lock(mutex_);
        if (stopping_ && std::ranges::none_of(children_, &Child::alive)) return;
      }
      Await();
      for (const RankExit& exit : Reap()) {
        if (on_exit_) on_exit_(exit);
      }
    }
  }

  void Await() {
    std::vector<pollfd> states;
    bool blind = !wake_.open();
    if (wake_.open()) states.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
    for (const Child& child : children_) {
      if (!child.alive) continue;  // only this thread changes it
      if (child.ended.open()) {
        states.push_back({.fd = child.ended.get(), .events = POLLIN, .revents = 0});
      } else {
        blind = true;
      }
    }
    (void)poll(states.data(), states.size(), blind ? kPeriodWithoutPidfd : -1);
  }

  // What is to be reported.
  std::vector<RankExit> Reap() {
    std::vector<RankExit> exits;
    const std::scoped_lock lock(mutex_);
    for (Child& child : children_) {
      std::optional<int> status;
      if (!child.alive || !HasEnded(child, status)) continue;
      child.alive = false;
      if (!stopping_) exits.push_back(Describe(child.rank, child.pid, status));
    }
    gone_.notify_all();
    return exits;
  }

  // With mutex_. Ends what is left of the child's process group, while the pid is still its own.
  static bool HasEnded(const Child& child, std::optional<int>& status) {
    siginfo_t info{};
    const auto id = static_cast<id_t>(child.pid);
    const int fault = waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT);
    if (fault != 0 && errno == ECHILD) return true;  // somebody else has reaped it
    if (fault != 0 || info.si_pid != child.pid) return false;
    (void)kill(-child.pid, SIGKILL);
    int taken = 0;
    if (waitpid(child.pid, &taken, WNOHANG) == child.pid) status = taken;
    return true;
  }

  // With mutex_.
  void SignalAll(int signal) {
    for (const Child& child : children_) {
      if (!child.alive) continue;
      (void)kill(-child.pid, signal);
      (void)kill(child.pid, signal);  // in case it left the group
    }
  }

  const OnExit on_exit_;
  const Descriptor wake_;
  std::mutex mutex_;
  std::condition_variable gone_;
  std::vector<Child> children_;  // constant after the start, but for `alive`
  bool stopping_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Launcher>> Launcher::Start(std::vector<RankProgram> programs,
                                                  OnExit on_exit) {
  try {
    auto launcher = std::make_unique<ProcessLauncher>(std::move(on_exit));
    SYNCLINE_TRY(launcher->Run(std::move(programs)));
    return launcher;
  } catch (const std::exception& error) {
    return Fail(Code::kLimitExceeded, fmt::format("cannot start a thread: {}", error.what()));
  }
}

Status ExitWithParent() {
  const char* const text = std::getenv(kParentVariable);
  if (text == nullptr) return {};
  const std::string digits = text;
  (void)unsetenv(kParentVariable);  // our own children have another parent
  pid_t parent = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), parent);
  if (fault != std::errc() || end != digits.data() + digits.size() || parent <= 0) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} is \"{}\", expected a pid", kParentVariable, digits));
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return base::FailErrno(errno, "PR_SET_PDEATHSIG");
  // It may have died before the kernel knew.
  if (getppid() != parent) {
    return Fail(Code::kUnavailable,
                fmt::format("the process that started this rank (pid {}) is gone", parent));
  }
  return {};
}

}  // namespace syncline::ranks
