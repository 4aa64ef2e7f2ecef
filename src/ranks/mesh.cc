// On the wire, between rank a and rank b > a; b connects, numbers are little-endian:
//
//   hello (b → a)    8 magic "SynMesh1", 4 rank of b, 4 length of the token, token
//   welcome (a → b)  8 magic
//   then both ways   messages: 8 number (0, 1, … of this exchange), 8 bytes, payload
//
// The number and the size of each message are compared with what this rank expects, so that ranks
// that have fallen out of step find out instead of adding up what does not belong together.
//
// An exchange: everything is written and read as far as the sockets take it, then the thread waits
// for any of them. Invariant: nobody waits for a write alone, so two ranks that both have much to send
// do not wait for each other.
#include "ranks/mesh.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <utility>

#include "base/cancel.h"
#include "base/wire.h"
#include "ranks/socket.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::uint64_t kMagic = 0x3168'7365'4d6e'7953;  // "SynMesh1"
constexpr std::size_t kMaxToken = 4096;
constexpr std::size_t kHeader = 16;
// In which a stranger must have said hello.
constexpr std::chrono::seconds kHelloTime{5};

// One direction of a message: header, then payload.
template <typename Byte>
class Part {
 public:
  void Begin(std::uint64_t number, std::span<Byte> payload) {
    base::Store(header_.data(), number);
    base::Store(header_.data() + 8, static_cast<std::uint64_t>(payload.size()));
    payload_ = payload;
    done_ = 0;
  }
  bool complete() const { return done_ == kHeader + payload_.size(); }
  bool header_complete() const { return done_ >= kHeader; }
  std::array<std::byte, kHeader>& header() { return header_; }
  std::size_t size() const { return payload_.size(); }
  void Add(std::size_t bytes) { done_ += bytes; }

  // What is left, for readv and writev.
  std::array<iovec, 2> Left() {
    const std::size_t of_header = std::min(done_, kHeader);
    const std::size_t of_payload = done_ - of_header;
    return {
        iovec{header_.data() + of_header, kHeader - of_header},
        iovec{const_cast<std::byte*>(payload_.data()) + of_payload, payload_.size() - of_payload}};
  }

 private:
  std::array<std::byte, kHeader> header_{};
  std::span<Byte> payload_;
  std::size_t done_ = 0;
};

struct Peer {
  Descriptor socket;
  Part<const std::byte> sending;
  Part<std::byte> receiving;
  // What the header of the message that comes must be.
  std::array<std::byte, kHeader> expected{};
};

class SocketMesh : public Mesh {
 public:
  SocketMesh(std::uint32_t rank, std::uint32_t size, std::string host, std::string token,
             Listener listener)
      : rank_(rank),
        host_(std::move(host)),
        token_(std::move(token)),
        listener_(std::move(listener)),
        peers_(size) {}

  Address address() const override { return {host_, listener_->port()}; }
  Status Connect(std::span<const Address> ranks, Deadline deadline) override;
  Status Exchange(std::span<const base::ByteSpan> send,
                  std::span<const base::MutableByteSpan> receive) override;
  void Abort(base::Error reason) override;

 private:
  Status Join(std::uint32_t rank, const Address& address, Deadline deadline);
  Status AcceptAll(Deadline deadline);
  void Welcome(Descriptor socket, Deadline deadline);
  Status Keep(std::uint32_t rank, Descriptor socket);
  std::uint32_t missing() const;
  Status Fault(std::uint32_t rank, int error_number) const;
  Status Send(std::uint32_t rank, Peer& peer) const;
  Status Receive(std::uint32_t rank, Peer& peer) const;
  Status Wait();
  std::optional<base::Error> aborted() const;

  const std::uint32_t rank_;
  const std::string host_;
  const std::string token_;
  std::optional<Listener> listener_;  // until all are there
  std::vector<Peer> peers_;           // by rank; this rank's own is not used
  std::uint64_t number_ = 0;          // of the next exchange
  std::vector<pollfd> waiting_;
  base::CancelToken cancel_;  // of connecting

  mutable std::mutex mutex_;
  std::atomic<bool> is_aborted_ = false;
  std::optional<base::Error> abort_reason_;  // guarded by mutex_
};

Status SocketMesh::Join(std::uint32_t rank, const Address& address, Deadline deadline) {
  const auto name = [&](base::Error error) {
    return base::Annotate(std::move(error), fmt::format("rank {} at {}", rank, ToText(address)));
  };
  auto socket = ranks::Connect(address, deadline, &cancel_);
  if (!socket) return name(socket.error());
  base::WireWriter hello;
  hello.Put(kMagic);
  hello.Put(rank_);
  hello.Put(static_cast<std::uint32_t>(token_.size()));
  for (const char c : token_) hello.Put(c);
  if (auto sent = WriteAll(*socket, std::move(hello).Take(), deadline, &cancel_); !sent) {
    return name(sent.error());
  }
  std::array<std::byte, 8> welcome{};
  if (auto read = ReadAll(*socket, welcome, deadline, &cancel_); !read) return name(read.error());
  if (base::Load<std::uint64_t>(welcome.data()) != kMagic) {
    return name({Code::kIncompatible, "no rank of this program listens there"});
  }
  return Keep(rank, *std::move(socket));
}

// Makes the connection that of a rank, or drops it.
void SocketMesh::Welcome(Descriptor socket, Deadline deadline) {
  deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTime);
  std::array<std::byte, 16> head{};
  if (!ReadAll(socket, head, deadline, &cancel_)) return;
  const auto rank = base::Load<std::uint32_t>(head.data() + 8);
  const auto size = base::Load<std::uint32_t>(head.data() + 12);
  if (base::Load<std::uint64_t>(head.data()) != kMagic || size > kMaxToken) return;
  std::string token(size, '\0');
  if (!ReadAll(socket, std::as_writable_bytes(std::span(token)), deadline, &cancel_)) return;
  if (token != token_ || rank <= rank_ || rank >= peers_.size() || peers_[rank].socket.open()) {
    return;
  }
  std::array<std::byte, 8> welcome{};
  base::Store(welcome.data(), kMagic);
  if (!WriteAll(socket, welcome, deadline, &cancel_)) return;
  // An Abort is seen by who waits for the others.
  static_cast<void>(Keep(rank, std::move(socket)));
}

// Abort may come meanwhile.
Status SocketMesh::Keep(std::uint32_t rank, Descriptor socket) {
  const std::scoped_lock lock(mutex_);
  if (abort_reason_) return std::unexpected(*abort_reason_);
  peers_[rank].socket = std::move(socket);
  return {};
}

// The lowest rank that is not connected; the number of ranks if all are.
std::uint32_t SocketMesh::missing() const {
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank != rank_ && !peers_[rank].socket.open()) return rank;
  }
  return static_cast<std::uint32_t>(peers_.size());
}

Status SocketMesh::AcceptAll(Deadline deadline) {
  constexpr int kLookEvery = 20;  // ms: at the deadline, and at Abort
  while (missing() < peers_.size()) {
    if (const auto error = aborted()) return std::unexpected(*error);
    if (std::chrono::steady_clock::now() >= deadline) {
      return Fail(Code::kTimeout, fmt::format("rank {} has not connected", missing()));
    }
    std::vector<pollfd> listening;
    for (const Descriptor& socket : listener_->sockets()) {
      listening.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    }
    poll(listening.data(), listening.size(), kLookEvery);
    for (const Descriptor& socket : listener_->sockets()) {
      SYNCLINE_ASSIGN(Accepted accepted, Accept(socket));
      if (accepted.socket.open()) Welcome(std::move(accepted.socket), deadline);
    }
  }
  return {};
}

Status SocketMesh::Connect(std::span<const Address> ranks, Deadline deadline) {
  // Those below are connected to in order, and accept while they wait for others: no circle.
  for (std::uint32_t rank = 0; rank < rank_; ++rank) {
    const Status joined = Join(rank, ranks[rank], deadline);
    if (const auto error = aborted()) return std::unexpected(*error);
    SYNCLINE_TRY(joined);
  }
  SYNCLINE_TRY(AcceptAll(deadline));
  listener_.reset();
  return {};
}

std::optional<base::Error> SocketMesh::aborted() const {
  if (!is_aborted_.load(std::memory_order_acquire)) return std::nullopt;
  const std::scoped_lock lock(mutex_);
  return abort_reason_;
}

void SocketMesh::Abort(base::Error reason) {
  const std::scoped_lock lock(mutex_);
  if (abort_reason_) return;
  abort_reason_ = std::move(reason);
  is_aborted_.store(true, std::memory_order_release);
  cancel_.Cancel();
  for (const Peer& peer : peers_) {
    if (peer.socket.open()) shutdown(peer.socket.get(), SHUT_RDWR);  // wakes who waits for it
  }
}

Status SocketMesh::Fault(std::uint32_t rank, int error_number) const {
  if (const auto error = aborted()) return std::unexpected(*error);
  return Fail(Code::kUnavailable,
              fmt::format("rank {}: {}", rank,
                          error_number == 0 ? "connection closed" : IoFaultText(error_number)));
}

Status SocketMesh::Send(std::uint32_t rank, Peer& peer) const {
  while (!peer.sending.complete()) {
    std::array<iovec, 2> left = peer.sending.Left();
    msghdr message{};
    message.msg_iov = left.data();
    message.msg_iovlen = left.size();
    const ssize_t sent = sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) return Fault(rank, errno);
    peer.sending.Add(static_cast<std::size_t>(sent));
  }
  return {};
}

Status SocketMesh::Receive(std::uint32_t rank, Peer& peer) const {
  while (!peer.receiving.complete()) {
    std::array<iovec, 2> left = peer.receiving.Left();
    const ssize_t received = readv(peer.socket.get(), left.data(), left.size());
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (received <= 0) return Fault(rank, received == 0 ? 0 : errno);
    peer.receiving.Add(static_cast<std::size_t>(received));
    if (peer.receiving.header_complete() && peer.receiving.header() != peer.expected) {
      const std::byte* found = peer.receiving.header().data();
      return Fail(Code::kInternal,
                  fmt::format("rank {} is out of step: it sends {} bytes in exchange {}, expected "
                              "{} in exchange {}",
                              rank, base::Load<std::uint64_t>(found + 8),
                              base::Load<std::uint64_t>(found), peer.receiving.size(), number_));
    }
  }
  return {};
}

// Until a socket takes or gives something that is left.
Status SocketMesh::Wait() {
  waiting_.clear();
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == rank_) continue;
    Peer& peer = peers_[rank];
    short events = 0;
    if (!peer.receiving.complete()) events |= POLLIN;
    if (!peer.sending.complete()) events |= POLLOUT;
    if (events != 0) {
      waiting_.push_back({.fd = peer.socket.get(), .events = events, .revents = 0});
    }
  }
  if (poll(waiting_.data(), waiting_.size(), -1) < 0 && errno != EINTR) {
    return base::FailErrno(errno, "poll");
  }
  return {};
}

Status SocketMesh::Exchange(std::span<const base::ByteSpan> send,
                            std::span<const base::MutableByteSpan> receive) {
  if (const auto error = aborted()) return std::unexpected(*error);
  const auto size = static_cast<std::uint32_t>(peers_.size());
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (rank == rank_) continue;
    Peer& peer = peers_[rank];
    peer.sending.Begin(number_, send[rank]);
    peer.receiving.Begin(number_, receive[rank]);
    peer.expected = peer.receiving.header();
  }
  for (;;) {
    bool complete = true;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (rank == rank_) continue;
      SYNCLINE_TRY(Send(rank, peers_[rank]));
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (rank == rank_) continue;
      SYNCLINE_TRY(Receive(rank, peers_[rank]));
      complete = complete && peers_[rank].sending.complete() && peers_[rank].receiving.complete();
    }
    if (complete) break;
    SYNCLINE_TRY(Wait());
  }
  ++number_;
  return {};
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Listen(std::uint32_t rank, std::uint32_t size,
                                           const std::string& host, std::string token) {
  if (token.size() > kMaxToken) {
    return Fail(Code::kInvalidArgument,
                fmt::format("a token of {} bytes; at most {}", token.size(), kMaxToken));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  SYNCLINE_ASSIGN(Listener listener, Listener::Open({host, 0}, deadline, nullptr));
  return std::make_unique<SocketMesh>(rank, size, host, std::move(token), std::move(listener));
}

}  // namespace syncline::ranks
