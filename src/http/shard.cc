#include "http/shard.h"

#include <algorithm>
#include <utility>

namespace syncline::http {
namespace {

// One timer a shard instead of one a connection: looking at every connection costs less than
// setting a timer at every step of every request.
std::chrono::milliseconds CheckInterval(const ServerOptions& options) {
  const auto shortest = std::min(options.header_timeout, options.idle_timeout) / 4;
  return std::clamp<std::chrono::milliseconds>(shortest, std::chrono::milliseconds(5),
                                               std::chrono::seconds(1));
}

}  // namespace

bool ConnectionCount::TryAdd() {
  const std::scoped_lock lock(mutex_);
  if (count_ >= max_) return false;
  ++count_;
  return true;
}

void ConnectionCount::Remove() {
  const std::scoped_lock lock(mutex_);
  if (--count_ == 0) none_.notify_all();
}

std::size_t ConnectionCount::value() const {
  const std::scoped_lock lock(mutex_);
  return count_;
}

void ConnectionCount::WaitForNone(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  // The clock overflows on the longest times that a caller could name.
  const auto time = std::min<std::chrono::milliseconds>(at_most, std::chrono::hours(24 * 365));
  none_.wait_for(lock, time, [&] { return count_ == 0; });
}

Shard::Shard(ServerContext& context)
    : context_(context),
      loop_(EventLoop::Make()),
      timer_(loop_->MakeTimer()),
      scratch_(std::make_unique<std::array<char, kScratchBytes>>()) {}

void Shard::Add(std::unique_ptr<Socket> socket, std::string peer) {
  std::shared_ptr<Connection> connection;
  try {
    connection = std::make_shared<Connection>(*this, std::move(socket), std::move(peer));
    connection->set_slot(connections_.size());
    connections_.push_back(connection);
  } catch (...) {
    context_.count.Remove();
    throw;
  }
  if (stopping()) return connection->Terminate(false);
  connection->Start();
  WatchTime();
}

void Shard::Remove(Connection& connection) {
  const std::size_t slot = connection.slot();
  const std::shared_ptr<Connection> removed = std::move(connections_[slot]);
  if (slot + 1 < connections_.size()) {
    connections_[slot] = std::move(connections_.back());
    connections_[slot]->set_slot(slot);
  }
  connections_.pop_back();
  context_.count.Remove();
}

void Shard::WatchTime() {
  if (watching_ || connections_.empty()) return;
  watching_ = true;
  timer_->Set(CheckInterval(options()), [this] { CheckTime(); });
}

// From the back, so that a connection that ends (and is replaced by the last one) skips none.
void Shard::CheckTime() {
  watching_ = false;
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = connections_.size(); i-- > 0;) {
    const std::shared_ptr<Connection> connection = connections_[i];
    connection->CheckTime(now);
  }
  WatchTime();
}

void Shard::Drain() {
  for (std::size_t i = connections_.size(); i-- > 0;) {
    const std::shared_ptr<Connection> connection = connections_[i];
    connection->Drain();
  }
}

void Shard::CloseAll() {
  while (!connections_.empty()) {
    const std::shared_ptr<Connection> connection = connections_.back();
    connection->Terminate(false);
  }
  timer_->Cancel();
}

}  // namespace syncline::http
