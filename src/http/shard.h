// One server thread's share of the connections.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "http/connection.h"
#include "http/event_loop.h"
#include "http/server.h"

namespace syncline::http {

// The open connections of a server. Thread-safe.
class ConnectionCount {
 public:
  explicit ConnectionCount(std::size_t max) : max_(max) {}

  bool TryAdd();  // false: there are `max` already
  void Remove();
  std::size_t value() const;
  void WaitForNone(std::chrono::milliseconds at_most);

 private:
  const std::size_t max_;
  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::size_t count_ = 0;  // guarded by mutex_
};

// What all shards of a server share.
struct ServerContext {
  const ServerOptions options;
  const Handler handler;
  ConnectionCount count;
  std::atomic<bool> stopping = false;
};

// Everything but loop() and Run belongs to the thread that is in Run. Outlives its connections: the
// owner calls CloseAll on the thread, and destroys the shard once Run has returned.
class Shard {
 public:
  explicit Shard(ServerContext& context);

  void Run() { loop_->Run(); }
  const std::shared_ptr<EventLoop>& loop() const { return loop_; }

  void Add(std::unique_ptr<Socket> socket, std::string peer);  // one that is counted already
  void Remove(Connection& connection);
  void Drain();
  void CloseAll();

  const ServerOptions& options() const { return context_.options; }
  const Handler& handler() const { return context_.handler; }
  bool stopping() const { return context_.stopping.load(std::memory_order_relaxed); }
  // Memory for one read. Its content is lost with the next task.
  std::span<char> scratch() { return *scratch_; }

 private:
  static constexpr std::size_t kScratchBytes = 64 << 10;

  void WatchTime();
  void CheckTime();

  ServerContext& context_;
  const std::shared_ptr<EventLoop> loop_;
  const std::unique_ptr<Timer> timer_;  // runs while there are connections
  bool watching_ = false;
  const std::unique_ptr<std::array<char, kScratchBytes>> scratch_;
  std::vector<std::shared_ptr<Connection>> connections_;
};

}  // namespace syncline::http
