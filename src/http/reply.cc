#include "http/reply.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "http/reply_head.h"

namespace syncline::http {
namespace {

int Sendable(int status) { return status >= 200 && status <= 599 ? status : 500; }

class ReplyExchange final : public Exchange {
 public:
  explicit ReplyExchange(std::shared_ptr<Reply> reply) : reply_(std::move(reply)) {}
  ~ReplyExchange() override {
    try {
      reply_->Abandon("the request was dropped without a reply");
    } catch (const std::exception& error) {  // out of memory; the client has to time out
      base::Log(base::LogLevel::kError, error.what());
    }
  }
  ReplyExchange(const ReplyExchange&) = delete;
  ReplyExchange& operator=(const ReplyExchange&) = delete;

  void Send(Response response) override { reply_->Send(std::move(response)); }
  void BeginStream(int status, std::string content_type) override {
    reply_->BeginStream(status, content_type);
  }
  void Write(std::string chunk) override { reply_->Write(std::move(chunk)); }
  void End() override { reply_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    reply_->OnDisconnect(std::move(callback));
  }

 private:
  const std::shared_ptr<Reply> reply_;
};

}  // namespace

std::shared_ptr<Exchange> MakeExchange(std::shared_ptr<Reply> reply) {
  return std::make_shared<ReplyExchange>(std::move(reply));
}

Reply::Reply(const ReplyTraits& traits, std::size_t max_unsent_bytes, std::weak_ptr<EventLoop> loop,
             std::weak_ptr<ReplySink> sink)
    : max_unsent_bytes_(max_unsent_bytes),
      loop_(std::move(loop)),
      sink_(std::move(sink)),
      traits_(traits) {}

bool Reply::Schedule() { return !std::exchange(scheduled_, true); }

void Reply::Notify() {
  const auto loop = loop_.lock();
  if (loop == nullptr) return;
  loop->Post([self = shared_from_this()] {
    if (const auto sink = self->sink_.lock()) sink->OnReplyOutput(*self);
  });
}

void Reply::Complete(Callbacks& dropped) {
  stage_ = Stage::kComplete;
  dropped.swap(callbacks_);
}

void Reply::Send(Response response) {
  Callbacks dropped;
  bool notify = false;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ != Stage::kWaiting) return;
    const int status = Sendable(response.status);
    const bool has_body = StatusHasBody(status);
    outbox_.Append(
        FormatHead({.status = status,
                    .content_type = response.content_type,
                    .headers = response.headers,
                    .content_length = has_body ? std::optional(response.body.size()) : std::nullopt,
                    .chunked = false,
                    .keep_alive = traits_.keep_alive,
                    .http_1_0 = traits_.http_1_0}));
    if (has_body && !traits_.head_only) outbox_.Adopt(std::move(response.body));
    Complete(dropped);
    notify = Schedule();
  }
  if (notify) Notify();
}

void Reply::BeginStream(int status, const std::string& content_type) {
  bool notify = false;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ != Stage::kWaiting) return;
    status = Sendable(status);
    const bool has_body = StatusHasBody(status);
    sends_body_ = has_body && !traits_.head_only;
    chunked_ = has_body && !traits_.http_1_0;
    if (has_body && !chunked_) traits_.keep_alive = false;  // its end is that of the connection
    outbox_.Append(FormatHead({.status = status,
                               .content_type = content_type,
                               .headers = {},
                               .content_length = std::nullopt,
                               .chunked = chunked_,
                               .keep_alive = traits_.keep_alive,
                               .http_1_0 = traits_.http_1_0}));
    stage_ = Stage::kStreaming;
    notify = Schedule();
  }
  if (notify) Notify();
}

void Reply::Write(std::string chunk) {
  bool notify = false;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ != Stage::kStreaming || !sends_body_ || chunk.empty()) return;
    if (outbox_.bytes() + queued_ > max_unsent_bytes_) {
      stage_ = Stage::kGone;
      reset_ = true;
      outbox_.Clear();
    } else if (chunked_) {
      outbox_.Append(fmt::format("{:x}\r\n", chunk.size()));
      outbox_.Adopt(std::move(chunk));
      outbox_.Append("\r\n");
    } else {
      outbox_.Adopt(std::move(chunk));
    }
    notify = Schedule();
  }
  if (notify) Notify();
}

void Reply::End() {
  Callbacks dropped;
  bool notify = false;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ != Stage::kStreaming) return;
    if (chunked_ && sends_body_) outbox_.Append("0\r\n\r\n");
    Complete(dropped);
    notify = Schedule();
  }
  if (notify) Notify();
}

void Reply::Abandon(std::string_view message) {
  Callbacks dropped;
  bool notify = false;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ == Stage::kComplete || stage_ == Stage::kGone) return;
    if (stage_ == Stage::kWaiting) {
      outbox_.Append(
          FormatError(500, message, traits_.keep_alive, traits_.http_1_0, traits_.head_only));
    } else {
      reset_ = true;
    }
    Complete(dropped);
    notify = Schedule();
  }
  if (notify) Notify();
}

void Reply::OnDisconnect(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ == Stage::kComplete) return;
    if (!disconnected_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  if (const auto loop = loop_.lock()) {
    loop->Post([callback = std::move(callback)] { Run(callback); });
  }
}

Reply::Output Reply::Take(WriteQueue& queue) {
  const std::scoped_lock lock(mutex_);
  scheduled_ = false;
  queue.Append(std::move(outbox_));
  queued_ = queue.bytes();
  return {
      .complete = stage_ == Stage::kComplete, .reset = reset_, .keep_alive = traits_.keep_alive};
}

void Reply::SetQueued(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  queued_ = bytes;
}

void Reply::ForbidKeepAlive() {
  const std::scoped_lock lock(mutex_);
  traits_.keep_alive = false;
}

void Reply::Disconnect() {
  Callbacks callbacks;
  {
    const std::scoped_lock lock(mutex_);
    outbox_.Clear();
    if (stage_ == Stage::kComplete || disconnected_) return;
    stage_ = Stage::kGone;
    disconnected_ = true;
    callbacks.swap(callbacks_);
  }
  for (const std::function<void()>& callback : callbacks) Run(callback);
}

void Reply::Run(const std::function<void()>& callback) {
  try {
    callback();
  } catch (const std::exception& error) {
    base::Log(base::LogLevel::kError,
              fmt::format("http: a disconnect callback threw: {}", error.what()));
  } catch (...) {
    base::Log(base::LogLevel::kError, "http: a disconnect callback threw");
  }
}

}  // namespace syncline::http
