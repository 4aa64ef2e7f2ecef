// The reply to one request between the threads that produce it and the connection that sends it.
//
// 1. The producer's side (Send, BeginStream, Write, End, Abandon) frames its bytes, puts them
//    into the outbox, and posts one task to the connection's loop if none is on its way.
// 2. That task calls ReplySink::OnReplyOutput, and the connection moves the outbox to its socket.
// 3. Disconnect tells the producer that the client is gone.
//
// Invariant: once the stage is kComplete or kGone nothing is added to the outbox, so that the
// bytes of a reply never follow its end. No code of the producer runs, and nothing of it is
// destroyed, while the lock is held.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http/event_loop.h"
#include "http/request_reader.h"
#include "http/server.h"
#include "http/write_queue.h"

namespace syncline::http {

class Reply;

class ReplySink {
 public:
  virtual ~ReplySink() = default;
  // On the loop's thread: the outbox has something, or the stage has changed.
  virtual void OnReplyOutput(Reply& reply) = 0;
};

// Thread-safe. Shared by the connection and the Exchange; holds neither of them.
class Reply : public std::enable_shared_from_this<Reply> {
 public:
  Reply(const ReplyTraits& traits, std::size_t max_unsent_bytes, std::weak_ptr<EventLoop> loop,
        std::weak_ptr<ReplySink> sink);

  // What Exchange says of them; any thread.
  void Send(Response response);
  void BeginStream(int status, const std::string& content_type);
  void Write(std::string chunk);
  void End();
  void OnDisconnect(std::function<void()> callback);
  // No more will come: 500 with `message` if nothing was sent, a reset inside a stream.
  void Abandon(std::string_view message);

  // The rest is the connection's, on the loop's thread.
  struct Output {
    bool complete = false;    // nothing follows what is in the queue
    bool reset = false;       // the connection is to be reset
    bool keep_alive = false;  // after a complete reply
  };
  Output Take(WriteQueue& queue);     // moves the outbox to the end of `queue`
  void SetQueued(std::size_t bytes);  // that Take gave and the socket has not taken
  void ForbidKeepAlive();             // as far as the headers have not been written
  void Disconnect();                  // the client is gone; runs the callbacks

 private:
  enum class Stage { kWaiting, kStreaming, kComplete, kGone };
  using Callbacks = std::vector<std::function<void()>>;

  [[nodiscard]] bool Schedule();  // whether Notify must be called once the lock is free
  void Notify();
  void Complete(Callbacks& dropped);
  static void Run(const std::function<void()>& callback);

  const std::size_t max_unsent_bytes_;
  const std::weak_ptr<EventLoop> loop_;
  const std::weak_ptr<ReplySink> sink_;

  std::mutex mutex_;  // guards all that follows
  ReplyTraits traits_;
  Stage stage_ = Stage::kWaiting;
  bool sends_body_ = true;
  bool chunked_ = false;
  bool reset_ = false;
  bool disconnected_ = false;  // Disconnect was called in time
  bool scheduled_ = false;     // a task for the outbox is on its way
  WriteQueue outbox_;
  std::size_t queued_ = 0;
  Callbacks callbacks_;
};

// The Exchange of a reply; abandons it when it is destroyed.
std::shared_ptr<Exchange> MakeExchange(std::shared_ptr<Reply> reply);

}  // namespace syncline::http
