#include "http/event_loop.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace syncline::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using base::Code;
using base::Fail;
using base::LogLevel;
using base::Result;
using boost::system::error_code;

constexpr int kBacklog = 4096;
constexpr std::chrono::milliseconds kAcceptPause(50);  // after an accept that failed

// A peer that vanished without a word is noticed after about two minutes.
constexpr int kKeepAliveIdleSeconds = 60;
constexpr int kKeepAliveIntervalSeconds = 15;
constexpr int kKeepAliveProbes = 4;

class AsioSocket final : public Socket {
 public:
  explicit AsioSocket(tcp::socket socket) : socket_(std::move(socket)) {
    SetOption(IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(SOL_SOCKET, SO_KEEPALIVE, 1);
    SetOption(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
    SetOption(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
    SetOption(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  }

  IoResult Read(std::span<char> to) override {
    return Repeat([&] { return ::recv(fd(), to.data(), to.size(), MSG_DONTWAIT); });
  }

  IoResult Write(std::span<const std::string_view> pieces) override {
    std::array<iovec, 64> vectors;
    msghdr message = {};
    message.msg_iov = vectors.data();
    for (const std::string_view piece : pieces.first(std::min(pieces.size(), vectors.size()))) {
      // sendmsg only reads what it points to.
      vectors.at(message.msg_iovlen++) = {const_cast<char*>(piece.data()), piece.size()};
    }
    return Repeat([&] { return ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
  }

  void WaitReadable(std::shared_ptr<SocketEvents> events) override {
    socket_.async_wait(tcp::socket::wait_read, [events = std::move(events)](error_code error) {
      if (error != asio::error::operation_aborted) events->OnReadable();
    });
  }

  void WaitWritable(std::shared_ptr<SocketEvents> events) override {
    socket_.async_wait(tcp::socket::wait_write, [events = std::move(events)](error_code error) {
      if (error != asio::error::operation_aborted) events->OnWritable();
    });
  }

  void ShutdownWrite() override {
    error_code ignored;
    (void)socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void Close() override {
    error_code ignored;
    (void)socket_.close(ignored);
  }

  void Reset() override {
    error_code ignored;
    (void)socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    (void)socket_.close(ignored);
  }

  bool PeerHasClosed() const override {
    pollfd state = {.fd = fd(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&state, 1, 0) > 0;
  }

 private:
  int fd() const { return const_cast<tcp::socket&>(socket_).native_handle(); }

  void SetOption(int level, int name, int value) {
    // Best effort: the peer may be gone already.
    (void)::setsockopt(fd(), level, name, &value, sizeof(value));
  }

  template <typename Call>
  static IoResult Repeat(const Call& call) {
    while (true) {
      const ssize_t moved = call();
      if (moved > 0) {
        return {.kind = IoResult::Kind::kDone, .bytes = static_cast<std::size_t>(moved)};
      }
      if (moved == 0) return {.kind = IoResult::Kind::kClosed};
      if (errno == EINTR) continue;
      const bool blocked = errno == EAGAIN || errno == EWOULDBLOCK;
      return {.kind = blocked ? IoResult::Kind::kBlocked : IoResult::Kind::kClosed};
    }
  }

  tcp::socket socket_;
};

class AsioTimer final : public Timer {
 public:
  explicit AsioTimer(asio::io_context& context) : timer_(context) {}

  void Set(std::chrono::milliseconds delay, Task task) override {
    timer_.expires_after(delay);
    timer_.async_wait([task = std::move(task)](error_code error) mutable {
      if (!error) task();
    });
  }
  void Cancel() override { timer_.cancel(); }

 private:
  asio::steady_timer timer_;
};

class AsioLoop final : public EventLoop {
 public:
  AsioLoop() : guard_(context_.get_executor()) {}

  asio::io_context& context() { return context_; }

  void Run() override {
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        base::Log(LogLevel::kError, fmt::format("http: a task failed: {}", error.what()));
      } catch (...) {
        base::Log(LogLevel::kError, "http: a task failed");
      }
    }
  }
  void Finish() override {
    asio::post(context_, [this] { guard_.reset(); });
  }
  void Post(Task task) override { asio::post(context_, std::move(task)); }
  std::unique_ptr<Timer> MakeTimer() override { return std::make_unique<AsioTimer>(context_); }
  Result<std::unique_ptr<Listener>> Listen(const std::string& address, std::uint16_t port) override;

 private:
  asio::io_context context_{1};  // one thread runs it
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
};

// IPv4 clients of an IPv6 socket by their IPv4 address.
std::string Name(const tcp::endpoint& peer) {
  const asio::ip::address address = peer.address();
  if (address.is_v4()) return fmt::format("{}:{}", address.to_string(), peer.port());
  const asio::ip::address_v6 v6 = address.to_v6();
  if (!v6.is_v4_mapped()) return fmt::format("[{}]:{}", v6.to_string(), peer.port());
  return fmt::format("{}:{}", asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string(),
                     peer.port());
}

class AsioListener final : public Listener {
 public:
  AsioListener(asio::io_context& context, tcp::acceptor acceptor)
      : acceptor_(std::move(acceptor)), pause_(context) {}

  std::uint16_t port() const override {
    error_code error;
    return acceptor_.local_endpoint(error).port();
  }

  void Accept(Choose choose, Take take) override {
    choose_ = std::move(choose);
    take_ = std::move(take);
    AcceptOne();
  }

  void Close() override {
    error_code ignored;
    (void)acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  void AcceptOne() {
    if (!acceptor_.is_open()) return;
    auto& loop = static_cast<AsioLoop&>(choose_());
    acceptor_.async_accept(loop.context(), [this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error && error != asio::error::connection_aborted) return PauseAfter(error);
      failing_ = false;
      if (!error) Handle(std::move(socket));
      AcceptOne();
    });
  }

  // Out of file descriptors or memory: others give some back in time.
  void PauseAfter(const error_code& error) {
    if (!std::exchange(failing_, true)) {
      base::Log(LogLevel::kWarning,
                fmt::format("http: cannot accept connections: {}", error.message()));
    }
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code cancelled) {
      if (!cancelled) AcceptOne();
    });
  }

  // Whatever goes wrong with one connection must not end the accepting.
  void Handle(tcp::socket socket) {
    try {
      error_code error;
      const tcp::endpoint peer = socket.remote_endpoint(error);
      if (error) return;  // gone already
      take_(std::make_unique<AsioSocket>(std::move(socket)), Name(peer));
    } catch (const std::exception& error) {
      base::Log(LogLevel::kError, fmt::format("http: a connection is dropped: {}", error.what()));
    }
  }

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  bool failing_ = false;  // the last accept failed
  Choose choose_;
  Take take_;
};

std::unexpected<base::Error> ListenError(const error_code& error, const std::string& name) {
  const int number = error.value();
  const bool taken = number == EADDRINUSE || number == EADDRNOTAVAIL;
  return Fail(taken ? Code::kUnavailable : base::CodeOfErrno(number),
              fmt::format("cannot listen on {}: {}", name, error.message()));
}

Result<std::unique_ptr<Listener>> AsioLoop::Listen(const std::string& address, std::uint16_t port) {
  error_code error;
  const asio::ip::address parsed = asio::ip::make_address(address, error);
  if (error) {
    return Fail(Code::kInvalidArgument, fmt::format("\"{}\" is no IPv4 or IPv6 address", address));
  }
  const tcp::endpoint endpoint(parsed, port);
  const std::string name = fmt::format("{} port {}", address, port);
  tcp::acceptor acceptor(context_);
  (void)acceptor.open(endpoint.protocol(), error);
  if (error) return ListenError(error, name);
  (void)acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && parsed.is_v6()) (void)acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) (void)acceptor.bind(endpoint, error);
  if (!error) (void)acceptor.listen(kBacklog, error);
  if (error) return ListenError(error, name);
  return std::make_unique<AsioListener>(context_, std::move(acceptor));
}

}  // namespace

std::shared_ptr<EventLoop> EventLoop::Make() { return std::make_shared<AsioLoop>(); }

}  // namespace syncline::http
