#include "orders/client.h"

#include <utility>

namespace syncline::orders {

void Client::Fault(const char* text) {
  if (fault_.empty()) fault_ = text;
}

// Also notes that somebody answered.
bool Client::IsGone() {
  if (stage_ != Stage::kLeft) return false;
  answered_ = true;
  changed_.notify_all();
  return true;
}

// What was to be called is dropped, outside of the lock.
void Client::Finish(std::unique_lock<std::mutex>& lock) {
  stage_ = Stage::kComplete;
  const std::function<void()> dropped = std::exchange(callback_, nullptr);
  changed_.notify_all();
  lock.unlock();
}

void Client::Send(http::Response response) {
  std::unique_lock lock(mutex_);
  if (IsGone()) return;
  if (stage_ != Stage::kWaiting) return Fault("a second reply");
  response_ = std::move(response);
  Finish(lock);
}

void Client::BeginStream(int status, std::string content_type) {
  const std::scoped_lock lock(mutex_);
  if (stage_ == Stage::kLeft) return;
  if (stage_ != Stage::kWaiting) return Fault("a stream after a reply");
  response_.status = status;
  response_.content_type = std::move(content_type);
  stage_ = Stage::kStreaming;
}

void Client::Write(std::string chunk) {
  const std::scoped_lock lock(mutex_);
  if (stage_ == Stage::kLeft) return;
  if (stage_ != Stage::kStreaming) return Fault("a chunk outside of a stream");
  response_.body += chunk;
}

void Client::End() {
  std::unique_lock lock(mutex_);
  if (IsGone()) return;
  if (stage_ != Stage::kStreaming) return Fault("the end of no stream");
  Finish(lock);
}

void Client::OnDisconnect(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ == Stage::kComplete) return;
    if (stage_ != Stage::kLeft) {
      callback_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Client::Leave() {
  std::function<void()> callback;
  {
    const std::scoped_lock lock(mutex_);
    if (stage_ == Stage::kComplete) return;
    stage_ = Stage::kLeft;
    callback = std::exchange(callback_, nullptr);
    changed_.notify_all();
  }
  if (callback) callback();
}

bool Client::Wait(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until,
                             [this] { return stage_ == Stage::kComplete || answered_; });
}

bool Client::left() {
  const std::scoped_lock lock(mutex_);
  return stage_ == Stage::kLeft;
}

http::Response Client::response() {
  const std::scoped_lock lock(mutex_);
  return response_;
}

std::string Client::fault() {
  const std::scoped_lock lock(mutex_);
  return fault_;
}

}  // namespace syncline::orders
