#include "ranks/socket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace syncline::ranks {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr int kPortAttempts = 16;
constexpr milliseconds kCancelPeriod{20};

std::string ErrnoText(int number) { return std::generic_category().message(number); }

const sockaddr* AsSockaddr(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(endpoint.sockaddr.data());
}

socklen_t SizeOf(const Endpoint& endpoint) {
  return static_cast<socklen_t>(endpoint.sockaddr.size());
}

std::uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

void SetPort(Endpoint& endpoint, std::uint16_t port) {
  const std::uint16_t number = htons(port);
  const std::size_t offset = endpoint.family == AF_INET ? offsetof(sockaddr_in, sin_port)
                                                        : offsetof(sockaddr_in6, sin6_port);
  std::memcpy(endpoint.sockaddr.data() + offset, &number, sizeof(number));
}

void SetOption(int socket, int level, int name, int value) {
  (void)setsockopt(socket, level, name, &value, sizeof(value));
}

Descriptor OpenSocket(const Endpoint& endpoint) {
  return Descriptor(socket(endpoint.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// A listening socket and its port, or an errno value.
std::expected<std::pair<Descriptor, std::uint16_t>, int> ListenOn(const Endpoint& endpoint,
                                                                  bool v6_only) {
  Descriptor listener = OpenSocket(endpoint);
  if (!listener.open()) return std::unexpected(errno);
  SetOption(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (endpoint.family == AF_INET6) {
    SetOption(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, v6_only ? 1 : 0);
  }
  if (bind(listener.get(), AsSockaddr(endpoint), SizeOf(endpoint)) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return std::unexpected(errno);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return std::unexpected(errno);
  }
  return std::pair(std::move(listener), PortOf(bound));
}

// The host has no such address now, or not this family: its others may do.
bool IsAbsent(int number) { return number == EADDRNOTAVAIL || number == EAFNOSUPPORT; }

// Readable or writable, or an end of the wait.
Status Await(const Descriptor& socket, short events, Deadline deadline,
             const base::CancelToken* cancel) {
  while (true) {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    const auto now = steady_clock::now();
    if (now >= deadline) return Fail(Code::kTimeout, "timed out");
    const auto left = std::chrono::ceil<milliseconds>(deadline - now);
    pollfd state = {.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&state, 1, static_cast<int>(std::min(left, kCancelPeriod).count()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return base::FailErrno(errno, "poll");
  }
}

// Both ends are the same socket: a connection to a free port of this host that the system had
// picked for the connecting side too.
bool IsConnectedToItself(const Descriptor& socket) {
  sockaddr_storage self{};
  sockaddr_storage peer{};
  socklen_t self_size = sizeof(self);
  socklen_t peer_size = sizeof(peer);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&self), &self_size) != 0 ||
      getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return false;
  }
  return self_size == peer_size && std::memcmp(&self, &peer, self_size) == 0;
}

Result<Descriptor> ConnectTo(const Endpoint& endpoint, Deadline deadline,
                             const base::CancelToken* cancel) {
  Descriptor socket = OpenSocket(endpoint);
  if (!socket.open()) return Fail(Code::kUnavailable, ErrnoText(errno));
  SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(socket.get(), AsSockaddr(endpoint), SizeOf(endpoint)) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return Fail(Code::kUnavailable, ErrnoText(errno));
    SYNCLINE_TRY(Await(socket, POLLOUT, deadline, cancel));
    int fault = 0;
    socklen_t size = sizeof(fault);
    (void)getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &fault, &size);
    if (fault != 0) return Fail(Code::kUnavailable, ErrnoText(fault));
  }
  if (IsConnectedToItself(socket)) return Fail(Code::kUnavailable, ErrnoText(ECONNREFUSED));
  return socket;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Result<Listener> Listener::Open(const Address& address, Deadline deadline,
                                const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(std::vector<Endpoint> endpoints, Resolve(address, deadline, cancel));
  int fault = 0;
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    Listener listener;
    fault = 0;
    int absent = 0;
    for (Endpoint& endpoint : endpoints) {
      SetPort(endpoint, listener.port_ != 0 ? listener.port_ : address.port);
      auto socket = ListenOn(endpoint, endpoints.size() > 1);
      if (socket) {
        listener.port_ = socket->second;
        listener.sockets_.push_back(std::move(socket->first));
      } else if (IsAbsent(socket.error())) {
        absent = socket.error();
      } else {
        fault = socket.error();
        break;
      }
    }
    if (fault == 0 && !listener.sockets_.empty()) return listener;
    if (fault == 0) fault = absent;
    // A port that the system picked for one address may be in use on another.
    if (address.port != 0 || fault != EADDRINUSE) break;
  }
  const bool later = fault == EADDRINUSE || IsAbsent(fault);
  return Fail(later ? Code::kUnavailable : base::CodeOfErrno(fault),
              fmt::format("cannot listen on {}: {}", ToText(address), ErrnoText(fault)));
}

Result<Accepted> Accept(const Descriptor& listener) {
  Endpoint peer{.family = 0, .sockaddr = std::vector<std::byte>(sizeof(sockaddr_storage))};
  socklen_t size = SizeOf(peer);
  Descriptor socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(peer.sockaddr.data()),
                            &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.open()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return base::FailErrno(errno, "cannot accept a connection");
    }
    return Accepted{};  // gone again
  }
  peer.sockaddr.resize(size);
  SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return Accepted{std::move(socket), HostText(peer)};
}

Result<Descriptor> Connect(const Address& address, Deadline deadline,
                           const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const std::vector<Endpoint> endpoints, Resolve(address, deadline, cancel));
  std::vector<std::string> reasons;
  Code code = Code::kUnavailable;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    const auto now = steady_clock::now();
    const auto share = (deadline - now) / static_cast<int>(endpoints.size() - i);
    auto socket = ConnectTo(endpoints[i], now + share, cancel);
    if (socket) return socket;
    code = socket.error().code;
    if (code == Code::kCancelled) break;
    const std::string host = HostText(endpoints[i]);
    reasons.push_back(host == address.host ? socket.error().message
                                           : fmt::format("{}: {}", host, socket.error().message));
  }
  if (code == Code::kCancelled) return Fail(code, "cancelled");
  return Fail(code,
              fmt::format("cannot connect to {}: {}", ToText(address), fmt::join(reasons, "; ")));
}

Status WriteAll(const Descriptor& socket, base::ByteSpan from, Deadline deadline,
                const base::CancelToken* cancel) {
  while (!from.empty()) {
    const ssize_t moved = send(socket.get(), from.data(), from.size(), MSG_NOSIGNAL);
    if (moved >= 0) {
      from = from.subspan(static_cast<std::size_t>(moved));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SYNCLINE_TRY(Await(socket, POLLOUT, deadline, cancel));
    } else if (errno != EINTR) {
      return Fail(Code::kUnavailable, IoFaultText(errno));
    }
  }
  return {};
}

Status ReadAll(const Descriptor& socket, base::MutableByteSpan into, Deadline deadline,
               const base::CancelToken* cancel) {
  while (!into.empty()) {
    const ssize_t moved = recv(socket.get(), into.data(), into.size(), 0);
    if (moved > 0) {
      into = into.subspan(static_cast<std::size_t>(moved));
    } else if (moved == 0) {
      return Fail(Code::kUnavailable, IoFaultText(0));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SYNCLINE_TRY(Await(socket, POLLIN, deadline, cancel));
    } else if (errno != EINTR) {
      return Fail(Code::kUnavailable, IoFaultText(errno));
    }
  }
  return {};
}

std::string IoFaultText(int error_number) {
  const bool closed = error_number == 0 || error_number == ECONNRESET || error_number == EPIPE;
  return closed ? "connection closed" : ErrnoText(error_number);
}

}  // namespace syncline::ranks
