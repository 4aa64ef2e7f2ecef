// Protocol:
//   1. Connect, and watch for the end of the connection: the library itself would connect again and
//      say nothing.
//   2. Take a message, do what it says, answer it; and so on until the second None.
//   3. Finish answers that one.
//   On an error: answer what waits for an answer with its text, and go on answering so until the
//   producer gives up. To leave before would let it wait for ever: its socket has nobody else to
//   send to.
// Invariant: `due_` says whether the producer waits for an answer; nothing is sent unless it does.
#include "transport/checkpoint_socket.h"

#include <fmt/format.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "payload/checkpoint_message.h"
#include "payload/classes.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using payload::CheckpointMessage;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t kMaxMessage = std::int64_t{64} << 20;
constexpr int kLinger = 1000;      // ms, for the last answer to leave
constexpr milliseconds kLook(50);  // between two looks at `cancel`
constexpr char kMonitor[] = "inproc://monitor";

std::unexpected<base::Error> FailZmq(std::string_view context) {
  return Fail(Code::kIo, fmt::format("{}: {}", context, zmq_strerror(zmq_errno())));
}

class Frame {
 public:
  Frame() { zmq_msg_init(&message_); }
  ~Frame() { zmq_msg_close(&message_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  zmq_msg_t* get() { return &message_; }
  bool more() const { return zmq_msg_more(&message_) != 0; }
  base::ByteSpan bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
struct EndContext {
  void operator()(void* context) const {
    while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR) {
    }
  }
};
using ZmqSocket = std::unique_ptr<void, CloseSocket>;
using ZmqContext = std::unique_ptr<void, EndContext>;

bool IsLoopback(std::string_view endpoint) {
  for (const std::string_view start : {"tcp://127.0.0.1:", "tcp://localhost:", "tcp://[::1]:"}) {
    if (!endpoint.starts_with(start)) continue;
    std::uint16_t port = 0;
    const char* const end = endpoint.data() + endpoint.size();
    const auto read = std::from_chars(endpoint.data() + start.size(), end, port);
    return read.ec == std::errc() && read.ptr == end && port > 0;
  }
  return false;
}

Status CheckEndpoint(const std::string& endpoint) {
  constexpr std::string_view kIpc = "ipc://";
  const bool ipc = endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size() &&
                   endpoint.find('\0') == std::string::npos;
  if (ipc || IsLoopback(endpoint)) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("endpoint {}: expected ipc://NAME, or tcp://127.0.0.1:PORT",
                          payload::Quoted(endpoint)));
}

class Socket final : public CheckpointSocket {
 public:
  Socket(std::string name, milliseconds timeout, const base::CancelToken* cancel)
      : name_(std::move(name)), timeout_(timeout), cancel_(cancel) {}

  Status Open(const std::string& endpoint);
  Status Receive(const Load& load) override;
  void Finish(const Status& outcome) override {
    Answer(outcome ? std::string_view() : outcome.error().message);
  }

 private:
  using Clock = steady_clock;

  template <typename T>
  Status Set(int option, T value) {
    if (zmq_setsockopt(socket_.get(), option, &value, sizeof(value)) == 0) return {};
    return FailZmq(name_);
  }
  Status Take(Frame& frame, Clock::time_point deadline);
  Result<bool> TakeNow(Frame& frame);
  Status Run(const Load& load);
  Status Do(CheckpointMessage message, const Load& load);
  Status Map(payload::SharedBuffer buffer);
  Status LoadBatch(const payload::Batch& batch, const Load& load) const;
  Status CountNone();
  void Answer(std::string_view text);
  void TellUntilItEnds(const std::string& text);

  const std::string name_;
  const milliseconds timeout_;
  const base::CancelToken* const cancel_;
  ZmqContext context_;
  ZmqSocket socket_;
  ZmqSocket monitor_;
  bool due_ = false;
  int nones_ = 0;
  std::optional<payload::SharedBuffer> buffer_;
};

Status Socket::Open(const std::string& endpoint) {
  context_.reset(zmq_ctx_new());
  if (context_) socket_.reset(zmq_socket(context_.get(), ZMQ_REP));
  if (socket_) monitor_.reset(zmq_socket(context_.get(), ZMQ_PAIR));
  if (!monitor_) return FailZmq(name_);
  const auto patience =
      static_cast<int>(std::min<std::int64_t>(timeout_.count(), std::numeric_limits<int>::max()));
  SYNCLINE_TRY(Set(ZMQ_MAXMSGSIZE, kMaxMessage));
  SYNCLINE_TRY(Set(ZMQ_LINGER, kLinger));
  SYNCLINE_TRY(Set(ZMQ_HANDSHAKE_IVL, patience));
  SYNCLINE_TRY(Set(ZMQ_IPV6, 1));
  if (zmq_socket_monitor(socket_.get(), kMonitor, ZMQ_EVENT_DISCONNECTED) != 0 ||
      zmq_connect(monitor_.get(), kMonitor) != 0 ||
      zmq_connect(socket_.get(), endpoint.c_str()) != 0) {
    return FailZmq(name_);
  }
  return {};
}

// ---- messages ----

// A message of one part, if one has come.
Result<bool> Socket::TakeNow(Frame& frame) {
  if (zmq_msg_recv(frame.get(), socket_.get(), ZMQ_DONTWAIT) < 0) {
    if (zmq_errno() == EAGAIN || zmq_errno() == EINTR) return false;
    return FailZmq(name_);
  }
  due_ = true;
  if (!frame.more()) return true;
  for (bool more = true; more;) {
    Frame rest;
    if (zmq_msg_recv(rest.get(), socket_.get(), ZMQ_DONTWAIT) < 0) return FailZmq(name_);
    more = rest.more();
  }
  return Fail(Code::kInvalidArgument, fmt::format("{}: a message of several parts", name_));
}

Status Socket::Take(Frame& frame, Clock::time_point deadline) {
  std::array<zmq_pollitem_t, 2> items = {
      {{.socket = socket_.get(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0},
       {.socket = monitor_.get(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0}}};
  while (true) {
    if (cancel_ != nullptr) SYNCLINE_TRY(cancel_->Check());
    if (zmq_poll(items.data(), static_cast<int>(items.size()), kLook.count()) < 0 &&
        zmq_errno() != EINTR) {
      return FailZmq(name_);
    }
    SYNCLINE_ASSIGN(const bool taken, TakeNow(frame));
    if (taken) return {};
    // What was sent before the end has been taken above: the library delivers it first.
    if ((items[1].revents & ZMQ_POLLIN) != 0) {
      return Fail(
          Code::kUnavailable,
          fmt::format("{} went away, or sent a message of more than {} bytes", name_, kMaxMessage));
    }
    if (Clock::now() > deadline) {
      return Fail(Code::kTimeout,
                  fmt::format("{} sent nothing for {} ms", name_, timeout_.count()));
    }
  }
}

void Socket::Answer(std::string_view text) {
  if (!std::exchange(due_, false)) return;
  // Never waits: there is one answer at a time. Where it fails nobody is there to hear it.
  static_cast<void>(zmq_send(socket_.get(), text.data(), text.size(), ZMQ_DONTWAIT));
}

// ---- what they say ----

Status Socket::Map(payload::SharedBuffer buffer) {
  if (buffer_ || nones_ > 0) {
    return Fail(Code::kInvalidArgument, "a second handle of a buffer");
  }
  buffer_ = std::move(buffer);
  return {};
}

Status Socket::LoadBatch(const payload::Batch& batch, const Load& load) const {
  if (!buffer_) return Fail(Code::kInvalidArgument, "tensors without a buffer");
  SYNCLINE_TRY(load(batch));
  return buffer_->memory->Intact();
}

Status Socket::CountNone() {
  if (!buffer_ && nones_ == 0) return Fail(Code::kInvalidArgument, "None before the buffer");
  ++nones_;
  buffer_.reset();
  return {};
}

Status Socket::Do(CheckpointMessage message, const Load& load) {
  if (auto* buffer = std::get_if<payload::SharedBuffer>(&message)) return Map(std::move(*buffer));
  if (const auto* batch = std::get_if<std::unique_ptr<payload::Batch>>(&message)) {
    return LoadBatch(**batch, load);
  }
  if (const auto* abort = std::get_if<payload::Abort>(&message)) {
    due_ = false;  // it hears no answer
    return Fail(Code::kUnavailable, fmt::format("{} gave up: {}", name_, abort->text));
  }
  return CountNone();
}

Status Socket::Run(const Load& load) {
  while (true) {
    Frame frame;
    SYNCLINE_TRY(Take(frame, Clock::now() + timeout_));
    Result<CheckpointMessage> message =
        payload::ReadCheckpointMessage(frame.bytes(), buffer_ ? buffer_->bytes : base::ByteSpan());
    if (!message) return std::unexpected(std::move(message).error());
    SYNCLINE_TRY(Do(*std::move(message), load));
    if (nones_ == 2) return {};
    Answer("");
  }
}

void Socket::TellUntilItEnds(const std::string& text) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (due_) {
    Answer(text);
    Frame frame;
    if (!Take(frame, deadline)) return;
    const Result<CheckpointMessage> message = payload::ReadCheckpointMessage(frame.bytes(), {});
    if (!message) continue;
    if (std::holds_alternative<payload::Nothing>(*message)) ++nones_;
    if (std::holds_alternative<payload::Abort>(*message)) due_ = false;
    if (nones_ == 2) return Answer(text);
  }
}

Status Socket::Receive(const Load& load) {
  Status done = Run(load);
  if (done) return {};
  buffer_.reset();
  TellUntilItEnds(done.error().message);
  return done;
}

}  // namespace

Result<std::unique_ptr<CheckpointSocket>> CheckpointSocket::Connect(
    const std::string& endpoint, milliseconds timeout, const base::CancelToken* cancel) {
  SYNCLINE_TRY(CheckEndpoint(endpoint));
  auto socket = std::make_unique<Socket>(
      fmt::format("the producer at {}", payload::Quoted(endpoint)), timeout, cancel);
  SYNCLINE_TRY(socket->Open(endpoint));
  return socket;
}

}  // namespace syncline::transport
