// Sockets and tasks of one server thread: a thin layer over the networking library, which nothing
// else in this room sees.
//
// Sockets are non-blocking and say when they are ready; who waits owns no buffer meanwhile, so that
// an idle connection costs little.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace syncline::http {

using Task = std::move_only_function<void()>;

// Hears of one socket, on its loop's thread.
class SocketEvents {
 public:
  virtual ~SocketEvents() = default;
  virtual void OnReadable() = 0;
  virtual void OnWritable() = 0;
};

struct IoResult {
  enum class Kind {
    kDone,     // `bytes` were moved, at least one
    kBlocked,  // nothing can be moved at the moment
    kClosed,   // the end of the peer's data, or an error
  };
  Kind kind = Kind::kDone;
  std::size_t bytes = 0;
};

// A connected TCP socket of one loop. Used on that loop's thread only; the destructor closes it.
class Socket {
 public:
  virtual ~Socket() = default;

  // Neither span is empty. Write may take fewer bytes than given and never raises SIGPIPE.
  virtual IoResult Read(std::span<char> to) = 0;
  virtual IoResult Write(std::span<const std::string_view> pieces) = 0;

  // Calls `events` once when a Read (Write) would not block. It is kept until then, or until the
  // socket is closed.
  virtual void WaitReadable(std::shared_ptr<SocketEvents> events) = 0;
  virtual void WaitWritable(std::shared_ptr<SocketEvents> events) = 0;

  virtual void ShutdownWrite() = 0;
  virtual void Close() = 0;  // what was written is still delivered
  virtual void Reset() = 0;  // the peer sees an error

  // Whether the peer has closed its side, behind whatever has not been read.
  virtual bool PeerHasClosed() const = 0;

  // Whether the connection still has to be established by reads and writes that move no data.
  virtual bool Establishing() const { return false; }
};

class Timer {
 public:
  virtual ~Timer() = default;
  // Runs `task` on the loop's thread after `delay`, instead of an earlier task. Only on that
  // thread.
  virtual void Set(std::chrono::milliseconds delay, Task task) = 0;
  virtual void Cancel() = 0;
};

class Listener;

class EventLoop {
 public:
  static std::shared_ptr<EventLoop> Make();
  virtual ~EventLoop() = default;

  // Runs tasks on the calling thread until Finish was called and nothing is left to wait for. What
  // a task throws is logged.
  virtual void Run() = 0;
  virtual void Finish() = 0;         // any thread
  virtual void Post(Task task) = 0;  // any thread, in order; never runs it at once

  virtual std::unique_ptr<Timer> MakeTimer() = 0;

  // Same errors as Server::Start. Belongs to this loop.
  virtual base::Result<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                         std::uint16_t port) = 0;
};

class Listener {
 public:
  // Where a connection goes, and who takes it. Both are called on the listener's thread; the socket
  // then belongs to the chosen loop's thread.
  using Choose = std::function<EventLoop&()>;
  using Take = std::function<void(std::unique_ptr<Socket> socket, std::string peer)>;

  virtual ~Listener() = default;
  virtual std::uint16_t port() const = 0;
  // Until Close. When the process has no file descriptor left, it waits a little and goes on.
  virtual void Accept(Choose choose, Take take) = 0;
  virtual void Close() = 0;  // on the loop's thread
};

}  // namespace syncline::http
