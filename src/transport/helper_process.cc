// Protocol of a question:
//   1. Write the line, as far as the pipe takes it, and read what comes; wait for both in poll.
//   2. The first whole line is the answer. What comes behind it would be the answer to nothing: the
//      helper is ended.
//   3. No line: the helper is ended, and the reason kept for later questions.
// Invariant: either the helper runs and owes no answer, or it is gone and `end_` says why.
#include "transport/helper_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>

#include "base/child_process.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook(100);  // for a cancelled token
constexpr std::size_t kLongestAnswer = std::size_t{64} << 20;

class Process : public HelperProcess {
 public:
  Process(base::ChildProcess child, int wake, std::string name)
      : child_(std::move(child)), wake_(wake), name_(std::move(name)) {}
  ~Process() override {
    child_.End(milliseconds(0));
    close(wake_);
  }

  Result<Json> Ask(const Json& question, milliseconds timeout,
                   const base::CancelToken* cancel) override;
  void Kill(const std::string& reason) override;

 private:
  struct Gone {
    Code code = Code::kUnavailable;
    std::string reason;
  };

  std::optional<Gone> Exchange(std::string question, steady_clock::time_point deadline,
                               const base::CancelToken* cancel);
  bool Write(std::string& rest) const;
  bool Read();
  std::optional<Gone> gone() const {
    const std::scoped_lock lock(mutex_);
    return gone_;
  }
  std::unexpected<base::Error> End(Gone gone);

  base::ChildProcess child_;  // of the one who asks
  const int wake_;
  const std::string name_;
  std::string answer_;
  mutable std::mutex mutex_;
  std::optional<Gone> gone_;  // guarded by mutex_
};

// False: the helper has gone.
bool Process::Write(std::string& rest) const {
  while (!rest.empty()) {
    const ssize_t written = write(child_.input(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN;
    rest.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

bool Process::Read() {
  std::array<char, 65536> buffer{};
  while (answer_.size() <= kLongestAnswer) {
    const ssize_t got = read(child_.output(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    answer_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return false;
}

// Nothing: a line has come.
std::optional<Process::Gone> Process::Exchange(std::string question,
                                               steady_clock::time_point deadline,
                                               const base::CancelToken* cancel) {
  answer_.clear();
  while (true) {
    const bool alive = Write(question) && Read();
    if (answer_.find('\n') != std::string::npos) return std::nullopt;
    if (!alive) return Gone{};
    if (std::optional<Gone> killed = gone()) return killed;
    if (cancel != nullptr && cancel->cancelled()) return Gone{Code::kCancelled, "cancelled"};
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return Gone{Code::kTimeout, "timed out"};
    const auto writing = static_cast<short>(question.empty() ? 0 : POLLOUT);
    std::array<pollfd, 3> polled = {
        {{.fd = child_.output(), .events = POLLIN, .revents = 0},
         {.fd = wake_, .events = POLLIN, .revents = 0},
         {.fd = question.empty() ? -1 : child_.input(), .events = writing, .revents = 0}}};
    const milliseconds wait = cancel != nullptr ? std::min(left, kLook) : left;
    poll(polled.data(), polled.size(),
         static_cast<int>(std::min(wait, milliseconds(60000)).count()));
  }
}

std::unexpected<base::Error> Process::End(Gone gone) {
  const std::string how = child_.End(milliseconds(gone.reason.empty() ? 1000 : 0));
  if (gone.reason.empty()) gone.reason = how;
  const std::scoped_lock lock(mutex_);
  if (!gone_) gone_ = gone;
  return Fail(gone_->code, fmt::format("{}: {}", name_, gone_->reason));
}

Result<Json> Process::Ask(const Json& question, milliseconds timeout,
                          const base::CancelToken* cancel) {
  if (std::optional<Gone> before = gone()) return End(*before);
  if (std::optional<Gone> lost =
          Exchange(base::ToText(question) + "\n", steady_clock::now() + timeout, cancel)) {
    return End(*lost);
  }
  if (answer_.find('\n') + 1 != answer_.size()) return End({Code::kInternal, "answered twice"});
  answer_.pop_back();
  Result<Json> answer = base::ParseJson(answer_);
  if (!answer) return End({Code::kInternal, "answered with what is no JSON"});
  const Json* error = answer->Find("error");
  if (error == nullptr) return answer;
  return Fail(Code::kUnavailable, error->string() != nullptr ? *error->string() : "failed");
}

void Process::Kill(const std::string& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) gone_ = Gone{Code::kUnavailable, reason};
  }
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof(one)));
}

}  // namespace

Result<std::unique_ptr<HelperProcess>> HelperProcess::Start(const std::vector<std::string>& command,
                                                            std::string name) {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return base::FailErrno(errno, "eventfd");
  Result<base::ChildProcess> child = base::ChildProcess::Spawn(command);
  if (!child) {
    close(wake);
    return base::Annotate(child.error(), name);
  }
  return std::make_unique<Process>(*std::move(child), wake, std::move(name));
}

std::string SharedName(int descriptor) {
  return fmt::format("/proc/{}/fd/{}", getpid(), descriptor);
}

Result<std::string> HelperPath(const std::string& name) {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return base::FailErrno(errno, "/proc/self/exe");
  const std::string self(path.data(), static_cast<std::size_t>(length));
  std::string beside = self.substr(0, self.rfind('/') + 1) + name;
  if (access(beside.c_str(), X_OK) != 0) return base::FailErrno(errno, beside);
  return beside;
}

}  // namespace syncline::transport
