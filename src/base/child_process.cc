#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/spawn.h"

namespace syncline::base {
namespace {

using std::chrono::steady_clock;

void Close(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// Closed on exec, so that a child that another thread starts at this moment does not get it.
struct Pipe {
  int read = -1;
  int write = -1;

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    Close(read);
    Close(write);
  }
  Status Open() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return FailErrno(errno, "cannot make a pipe");
    read = ends[0];
    write = ends[1];
    return {};
  }
};

Status NeverBlock(int descriptor) {
  if (fcntl(descriptor, F_SETFL, O_NONBLOCK) != 0) return FailErrno(errno, "fcntl");
  return {};
}

// Waits until the child has ended, but leaves it for waitpid, so that its process group stays ours.
void AwaitEnd(int pid, std::chrono::milliseconds grace) {
  const auto deadline = steady_clock::now() + grace;
  while (true) {
    siginfo_t info{};
    const int fault = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (fault != 0 || info.si_pid == pid || steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

Result<ChildProcess> ChildProcess::Spawn(const std::vector<std::string>& command) {
  Pipe in;
  Pipe out;
  SYNCLINE_TRY(in.Open());
  SYNCLINE_TRY(out.Open());
  SYNCLINE_TRY(NeverBlock(in.write));
  SYNCLINE_TRY(NeverBlock(out.read));
  SYNCLINE_ASSIGN(const int pid, base::Spawn({.command = command,
                                              .environment = std::nullopt,
                                              .standard_input = in.read,
                                              .standard_output = out.write}));
  return ChildProcess(pid, std::exchange(in.write, -1), std::exchange(out.read, -1));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)) {}

ChildProcess::~ChildProcess() {
  if (pid_ != 0) End(std::chrono::milliseconds(0));
}

std::string ChildProcess::End(std::chrono::milliseconds grace) {
  ClosePipes();
  const int pid = std::exchange(pid_, 0);
  if (pid == 0) return "ended before";
  AwaitEnd(pid, grace);
  kill(-pid, SIGKILL);
  kill(pid, SIGKILL);  // in case it left the group
  int status = 0;
  int ended = 0;
  do {
    ended = waitpid(pid, &status, 0);
  } while (ended < 0 && errno == EINTR);
  if (ended == pid && WIFEXITED(status)) {
    return fmt::format("exit status {}", WEXITSTATUS(status));
  }
  if (ended == pid && WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  return "unknown end";
}

void ChildProcess::ClosePipes() {
  Close(input_);
  Close(output_);
}

}  // namespace syncline::base
