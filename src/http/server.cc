// Stopping: (1) `stopping` is set, so that no connection that arrives from now on is kept;
// (2) the listener closes, connections without a running reply close, and the others close when
// their reply is written; (3) after the drain time the rest is cut off, which runs their disconnect
// callbacks; (4) each loop finishes once nothing is left to run, and the threads are joined.
#include "http/server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "http/event_loop.h"
#include "http/shard.h"
#include "http/tls.h"

namespace syncline::http {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

class ShardedServer final : public Server {
 public:
  ShardedServer(const ServerOptions& options, Handler handler)
      : context_{.options = options,
                 .handler = std::move(handler),
                 .count = ConnectionCount(options.max_connections)} {}
  ~ShardedServer() override { ShardedServer::Stop({}); }
  ShardedServer(const ShardedServer&) = delete;
  ShardedServer& operator=(const ShardedServer&) = delete;

  Status Open() {
    const ServerOptions& options = context_.options;
    if (options.tls) {
      SYNCLINE_ASSIGN(tls_, TlsContext::Make(*options.tls));
    }
    for (std::size_t i = 0; i < options.threads; ++i) {
      shards_.push_back(std::make_unique<Shard>(context_));
    }
    SYNCLINE_ASSIGN(listener_, shards_[0]->loop()->Listen(options.address, options.port));
    port_ = listener_->port();
    for (const auto& shard : shards_) {
      threads_.emplace_back([&shard = *shard] {
        pthread_setname_np(pthread_self(), "syncline-http");
        shard.Run();
      });
    }
    shards_[0]->loop()->Post([this] {
      listener_->Accept(
          [this]() -> EventLoop& { return *NextShard().loop(); },
          [this](auto socket, auto peer) { Take(std::move(socket), std::move(peer)); });
    });
    return {};
  }

  std::uint16_t port() const override { return port_; }
  std::size_t connections() const override { return context_.count.value(); }

  void Stop(std::chrono::milliseconds drain) override {
    const std::scoped_lock lock(stop_mutex_);
    if (context_.stopping.exchange(true)) return;
    if (listener_) shards_[0]->loop()->Post([this] { listener_->Close(); });
    for (const auto& shard : shards_) {
      shard->loop()->Post([&shard = *shard] { shard.Drain(); });
    }
    context_.count.WaitForNone(drain);
    for (const auto& shard : shards_) {
      shard->loop()->Post([&shard = *shard] { shard.CloseAll(); });
      shard->loop()->Finish();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::unique_ptr<Socket> Secured(std::unique_ptr<Socket> socket, Shard& shard) {
    try {
      return tls_->Wrap(std::move(socket), shard.loop());
    } catch (...) {
      context_.count.Remove();
      throw;
    }
  }

  // Round robin. The last one chosen gets the connection that is accepted next.
  Shard& NextShard() {
    next_ = (next_ + 1) % shards_.size();
    return *shards_[next_];
  }

  void Take(std::unique_ptr<Socket> socket, std::string peer) {
    if (context_.stopping || !context_.count.TryAdd()) return;
    Shard& shard = *shards_[next_];
    if (tls_) socket = Secured(std::move(socket), shard);
    shard.loop()->Post([&shard, socket = std::move(socket), peer = std::move(peer)]() mutable {
      shard.Add(std::move(socket), std::move(peer));
    });
  }

  ServerContext context_;
  std::unique_ptr<TlsContext> tls_;  // null: plain HTTP
  std::uint16_t port_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Listener> listener_;  // on the loop of the first shard
  std::size_t next_ = 0;                // on its thread
  std::vector<std::thread> threads_;
  std::mutex stop_mutex_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Handler handler) {
  if (options.threads == 0) return Fail(Code::kInvalidArgument, "a server needs a thread");
  if (!handler) return Fail(Code::kInvalidArgument, "a server needs a handler");
  try {
    auto server = std::make_unique<ShardedServer>(options, std::move(handler));
    SYNCLINE_TRY(server->Open());
    return server;
  } catch (const std::exception& error) {
    return Fail(Code::kIo, fmt::format("cannot start a server: {}", error.what()));
  }
}

}  // namespace syncline::http
