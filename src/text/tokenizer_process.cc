// How the supervisor works. One thread owns the helper and everything but the list of arrivals:
//
// 1. Calls put requests into arrivals_ and wake the thread. It moves them to waiting_.
// 2. While there is no helper it starts one: at once in the beginning, then only if a request
//    waits, and never sooner than the restart interval after the last start.
// 3. Once the helper is ready, waiting requests are sent, at most kMaxInFlight ahead of the
//    replies, so that a helper that dies takes few of them along.
// 4. Replies come in the order of in_flight_; anything else than the reply to its head is a fault.
// 5. A fault (death, nonsense, no reply in time) ends the helper and fails in_flight_; waiting_
//    stays for the next helper. A fault before the helper is ready fails waiting_ too.
//
// All reads and writes are non-blocking; poll is the only place where the thread waits for others.
#include "text/tokenizer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/child_process.h"
#include "base/log.h"
#include "text/byte_queue.h"
#include "text/tokenizer_messages.h"

namespace syncline::text {
namespace {

using base::Code;
using base::Error;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxInFlight = 8;
constexpr std::size_t kReadBytes = 1 << 16;
constexpr milliseconds kExitGrace{1000};      // from the end of its output to its own end
constexpr milliseconds kPollWithoutWake{20};  // if there is no descriptor to wake the thread

struct Request {
  Json::Object message;  // without id
  ReplyShape shape;
  std::function<void(Result<Reply>)> done;
};

class Supervisor final : public TokenizerProcess {
 public:
  explicit Supervisor(TokenizerOptions options)
      : options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    options_.command.push_back(options_.directory);
    thread_ = std::thread([this] { Run(); });
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor() override {
    stop_ = true;
    Wake();
    thread_.join();
    if (wake_ >= 0) close(wake_);
  }

  void Encode(std::vector<std::string> texts, bool add_special_tokens, Encoded done) override {
    Request request;
    request.shape.lists = texts.size();
    Json::Array list(std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end()));
    request.message = {{"op", "encode"},
                       {"texts", Json(std::move(list))},
                       {"add_special_tokens", Json(add_special_tokens)}};
    request.done = [done = std::move(done)](Result<Reply> reply) {
      if (!reply) return done(std::unexpected(std::move(reply).error()));
      done(std::move(reply->tokens));
    };
    Arrive(std::move(request));
  }

  void ApplyChatTemplate(Json messages, Json options, Prompted done) override {
    Request request;
    request.shape.lists = 1;
    request.shape.has_text = true;
    request.message = {{"op", "chat"},
                       {"messages", std::move(messages)},
                       {"options", options.is_null() ? Json(Json::Object{}) : std::move(options)}};
    request.done = [done = std::move(done)](Result<Reply> reply) {
      if (!reply) return done(std::unexpected(std::move(reply).error()));
      done(ChatPrompt{.text = std::move(reply->text), .tokens = std::move(reply->tokens.front())});
    };
    Arrive(std::move(request));
  }

  int pid() const override { return pid_; }

 private:
  using Requests = std::deque<Request>;
  using Time = steady_clock::time_point;

  void Arrive(Request request) {
    {
      const std::scoped_lock lock(mutex_);
      arrivals_.push_back(std::move(request));
    }
    Wake();
  }

  void Wake() {
    const std::uint64_t one = 1;
    if (wake_ >= 0) (void)!write(wake_, &one, sizeof(one));  // full: it is awake
  }

  // From here on: the thread's own.

  void Run() {
    // Writing to a dead helper must not end this process.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (!stop_) {
      TakeArrivals();
      StartIfDue();
      SendWaiting();
      Wait();
      if (child_) Read();
      if (child_) Write();
      if (child_) CheckTime();
    }
    if (child_) child_->End(milliseconds(0));
    child_.reset();
    pid_ = 0;
    const Error error{Code::kCancelled, "the tokenizer is shutting down"};
    FailAll(in_flight_, error);
    do {  // callbacks may bring more
      FailAll(waiting_, error);
      TakeArrivals();
    } while (!waiting_.empty());
  }

  void TakeArrivals() {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(arrivals_, std::back_inserter(waiting_));
    arrivals_.clear();
  }

  void StartIfDue() {
    if (child_ || (started_ && (waiting_.empty() || steady_clock::now() < NextStart()))) return;
    started_ = steady_clock::now();
    Result<base::ChildProcess> child = base::ChildProcess::Spawn(options_.command);
    if (!child) return FailWaiting(child.error().message);
    child_.emplace(*std::move(child));
    pid_ = child_->pid();
    is_ready_ = false;
    input_ = {};
    reader_ = {};
  }

  Time NextStart() const { return *started_ + options_.restart_interval; }

  void SendWaiting() {
    while (child_ && is_ready_ && in_flight_.size() < kMaxInFlight && !waiting_.empty()) {
      Request request = std::move(waiting_.front());
      waiting_.pop_front();
      request.shape.id = ++last_id_;
      request.message.insert(request.message.begin(), {"id", Json(last_id_)});
      const Status status = AppendMessage(Json(std::move(request.message)), input_);
      if (!status) {
        request.done(std::unexpected(status.error()));
        continue;
      }
      if (in_flight_.empty()) head_since_ = steady_clock::now();
      in_flight_.push_back(std::move(request));
    }
  }

  // Until there is something to do for this thread.
  void Wait() {
    std::array<pollfd, 3> polled = {
        {{.fd = wake_, .events = POLLIN},
         {.fd = child_ ? child_->output() : -1, .events = POLLIN},
         {.fd = child_ && !input_.empty() ? child_->input() : -1, .events = POLLOUT}}};
    poll(polled.data(), polled.size(), PollTimeout());
    std::uint64_t count = 0;
    if (wake_ >= 0) (void)!read(wake_, &count, sizeof(count));
  }

  int PollTimeout() const {
    std::optional<Time> until = Deadline();
    if (!child_ && !waiting_.empty()) until = NextStart();
    if (wake_ < 0) {
      const Time soon = steady_clock::now() + kPollWithoutWake;
      until = std::min(until.value_or(soon), soon);
    }
    if (!until) return -1;
    const auto left = std::chrono::ceil<milliseconds>(*until - steady_clock::now());
    return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 1 << 30));
  }

  // When the helper must have done what it is asked for.
  std::optional<Time> Deadline() const {
    if (!child_) return std::nullopt;
    if (!is_ready_) return *started_ + options_.start_timeout;
    if (!in_flight_.empty()) return head_since_ + options_.timeout;
    return std::nullopt;
  }

  void Read() {
    std::array<char, kReadBytes> buffer;
    const ssize_t count = read(child_->output(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return Fault("it ended", kExitGrace);
    reader_.Append({buffer.data(), static_cast<std::size_t>(count)});
    while (child_) {
      Result<std::optional<Json>> message = reader_.Next();
      if (!message) return Fault(fmt::format("it sent nonsense: {}", message.error().message));
      if (!*message) return;
      Handle(**message);
    }
  }

  void Handle(const Json& message) {
    if (!is_ready_) {
      const Status ready = CheckReady(message);
      if (!ready) return Fault(ready.error().message);
      is_ready_ = true;
      return;
    }
    if (in_flight_.empty()) return Fault("it sent a reply that nobody asked for");
    Result<Result<Reply>> reply = ParseReply(message, in_flight_.front().shape);
    if (!reply) return Fault(fmt::format("it sent nonsense: {}", reply.error().message));
    const Request request = std::move(in_flight_.front());
    in_flight_.pop_front();
    head_since_ = steady_clock::now();
    request.done(*std::move(reply));
  }

  void Write() {
    if (input_.empty()) return;
    const ssize_t count = write(child_->input(), input_.view().data(), input_.view().size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) return Fault("it reads no more", kExitGrace);
    input_.Drop(static_cast<std::size_t>(count));
  }

  void CheckTime() {
    const std::optional<Time> deadline = Deadline();
    if (!deadline || steady_clock::now() < *deadline) return;
    if (!is_ready_) {
      return Fault(fmt::format("it was not ready after {} ms", options_.start_timeout.count()));
    }
    const Request late = std::move(in_flight_.front());
    in_flight_.pop_front();
    const std::string text =
        fmt::format("it did not answer within {} ms", options_.timeout.count());
    Fault(text);
    late.done(Fail(Code::kTimeout, fmt::format("tokenizer helper: {}", text)));
  }

  // Ends the helper.
  void Fault(std::string_view what, milliseconds grace = milliseconds(0)) {
    std::string text(what);
    const std::string end = child_->End(grace);
    if (grace.count() > 0) text += fmt::format(" ({})", end);
    child_.reset();
    pid_ = 0;
    base::Log(base::LogLevel::kWarning, fmt::format("tokenizer helper: {}", text));
    if (!is_ready_) return FailWaiting(text);
    FailAll(in_flight_, {Code::kUnavailable, fmt::format("tokenizer helper: {}", text)});
  }

  void FailWaiting(std::string_view what) {
    TakeArrivals();
    FailAll(waiting_, {Code::kUnavailable, fmt::format("tokenizer helper: {}", what)});
  }

  // Callbacks may make requests, which go to arrivals_.
  static void FailAll(Requests& requests, const Error& error) {
    for (const Request& request : std::exchange(requests, {})) {
      request.done(std::unexpected(error));
    }
  }

  TokenizerOptions options_;
  const int wake_;  // eventfd; -1 if there is none
  std::atomic<bool> stop_ = false;
  std::atomic<int> pid_ = 0;

  std::mutex mutex_;
  Requests arrivals_;  // guarded by mutex_

  Requests waiting_;
  Requests in_flight_;
  std::optional<base::ChildProcess> child_;
  std::optional<Time> started_;  // the last start
  bool is_ready_ = false;
  ByteQueue input_;  // for the helper, not yet written
  MessageReader reader_;
  Time head_since_;  // the head of in_flight_ is the helper's work
  std::uint64_t last_id_ = 0;

  std::thread thread_;
};

}  // namespace

std::unique_ptr<TokenizerProcess> TokenizerProcess::Start(TokenizerOptions options) {
  return std::make_unique<Supervisor>(std::move(options));
}

}  // namespace syncline::text
