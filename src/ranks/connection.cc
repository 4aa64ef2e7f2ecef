// How a connection works:
//
// 1. Send() writes on the caller's thread if nothing is queued and the frame is small. What the
//    network does not take goes into queue_, in order; the writing thread empties it. So frames
//    leave whole and in the order of the calls.
// 2. The writing thread wakes for every beat. If nothing is queued it sends a heartbeat: it never
//    computes nor calls anybody who might, so we live as long as the process runs.
// 3. Reading is one thread's work at a time (read_mutex_). In kThread it is a thread of ours. In
//    kCaller it is the thread in ReadSome(), without a hand-over between threads; while nobody is
//    there, the writing thread reads at every beat what has come, so that the peer is never kept
//    from sending, and silence and the end are noticed.
// 4. Any byte received is a sign of life. Silence is judged only after a read that found nothing: a
//    process that was stopped itself finds its peer's bytes first.
// 5. Only the reading side reports a fault. A failed write shuts the socket down, and the reader
//    comes to the end after everything that the peer has still said, such as a farewell.
// 6. Stop() and faults shut the socket down, which ends every poll; it is closed after all threads
//    are joined, so no descriptor is used again too early.
#include "ranks/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

namespace syncline::ranks {
namespace {

using base::Code;
using base::Fail;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kWriteAtOnce = std::size_t{256} << 10;  // larger frames go to the thread

// Until `events` are there, the deadline has passed, or the socket is shut down.
void Await(int socket, short events, Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  pollfd state = {.fd = socket, .events = events, .revents = 0};
  const auto timeout = std::clamp<std::int64_t>(left.count(), 0, 3'600'000);
  (void)poll(&state, 1, static_cast<int>(timeout));
}

}  // namespace

Connection::Outgoing::Outgoing(const OutgoingFrame& frame)
    : header(Encode(FrameHeader{.size = frame.payload ? frame.payload->size() : 0,
                                .id = frame.id,
                                .kind = frame.kind,
                                .type = frame.type})),
      payload(frame.payload) {}

Connection::Connection(Descriptor socket, Timing timing, Reading reading, Events events)
    : socket_(std::move(socket)),
      timing_(timing),
      reading_(reading),
      events_(std::move(events)),
      last_received_(steady_clock::now()) {}

Connection::~Connection() { End(); }

void Connection::End() {
  Stop();
  if (writer_.joinable()) writer_.join();
  if (reader_thread_.joinable()) reader_thread_.join();
}

Status Connection::Start() {
  try {
    writer_ = std::thread([this] { Write(); });
    if (reading_ == Reading::kThread) reader_thread_ = std::thread([this] { Read(); });
  } catch (const std::exception& error) {
    Stop();
    return Fail(Code::kLimitExceeded, fmt::format("cannot start a thread: {}", error.what()));
  }
  return {};
}

void Connection::Send(const OutgoingFrame& frame) {
  const std::scoped_lock lock(send_mutex_);
  SendLocked(frame);
}

void Connection::SendLocked(const OutgoingFrame& frame) {
  if (last_ || broken_) return;
  Outgoing item(frame);
  if (queue_.empty() && item.size() <= kWriteAtOnce) {
    const int fault = WriteNow(item);
    if (fault == 0) return;
    if (fault != EAGAIN) return BreakSending(fault);
  }
  queue_.push_back(std::move(item));
  wake_.notify_one();
}

void Connection::SendLast(const OutgoingFrame& frame, bool overtake, Deadline deadline) {
  const std::scoped_lock lock(send_mutex_);
  if (last_ || broken_) return;
  if (overtake) {
    const auto kept = std::ranges::find_if(
        queue_, [](const Outgoing& item) { return !item.begun && item.sent == 0; });
    queue_.erase(kept, queue_.end());
  }
  SendLocked(frame);
  last_ = true;
  close_at_ = deadline;
  wake_.notify_one();
}

// With send_mutex_, or by the writing thread for the front of the queue. Never waits: 0 when all is
// written, EAGAIN when the network takes no more now, or another errno value.
int Connection::WriteNow(Outgoing& item) {
  while (item.sent < item.size()) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    const std::size_t head = std::min(item.sent, item.header.size());
    if (head < item.header.size()) {
      parts.at(count++) = {item.header.data() + head, item.header.size() - head};
    }
    if (item.payload && !item.payload->empty()) {
      const std::size_t done = item.sent - head;
      // sendmsg only reads what it points to.
      parts.at(count++) = {const_cast<std::byte*>(item.payload->data()) + done,
                           item.payload->size() - done};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t moved = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) {
      item.sent += static_cast<std::size_t>(moved);
    } else if (errno != EINTR) {
      return errno == EWOULDBLOCK ? EAGAIN : errno;
    }
  }
  return 0;
}

// With send_mutex_.
void Connection::BreakSending(int error_number) {
  broken_ = true;
  send_fault_ = error_number;
  (void)shutdown(socket_.get(), SHUT_RDWR);
}

void Connection::Write() {
  std::unique_lock lock(send_mutex_);
  next_beat_ = steady_clock::now() + timing_.heartbeat;
  while (!broken_) {
    if (steady_clock::now() >= next_beat_) {
      Beat(lock);
    } else if (!queue_.empty()) {
      WriteFront(lock);
    } else if (last_) {
      (void)shutdown(socket_.get(), SHUT_WR);
      wake_.wait_until(lock, close_at_, [this] { return broken_; });
      if (!broken_) BreakSending(ETIMEDOUT);
    } else {
      wake_.wait_until(lock, next_beat_);
    }
  }
  queue_.clear();
}

void Connection::WriteFront(std::unique_lock<std::mutex>& lock) {
  Outgoing& front = queue_.front();
  front.begun = true;
  const Deadline until = last_ ? std::min(next_beat_, close_at_) : next_beat_;
  lock.unlock();
  const int fault = WriteNow(front);
  if (fault == EAGAIN) Await(socket_.get(), POLLOUT, until);
  lock.lock();
  if (broken_) return;
  if (fault == 0) {
    const Outgoing done = std::move(front);
    queue_.pop_front();
    lock.unlock();  // to free a large payload takes its time
  } else if (fault != EAGAIN) {
    BreakSending(fault);
  } else if (last_ && steady_clock::now() >= close_at_) {
    BreakSending(ETIMEDOUT);
  }
  if (!lock.owns_lock()) lock.lock();
}

void Connection::Beat(std::unique_lock<std::mutex>& lock) {
  next_beat_ = steady_clock::now() + timing_.heartbeat;
  if (queue_.empty()) SendLocked({.type = FrameType::kHeartbeat});
  if (reading_ == Reading::kThread) return;
  lock.unlock();
  ReadAndReport(false);
  lock.lock();
}

void Connection::Read() {
  while (!closed_) ReadAndReport(true);
}

bool Connection::ReadSome() {
  ReadAndReport(true);
  return !closed_;
}

void Connection::ReadAndReport(bool wait) {
  std::optional<Fault> fault;
  {
    std::unique_lock lock(read_mutex_, std::defer_lock);
    if (wait) {
      lock.lock();
    } else if (!lock.try_lock()) {
      return;  // somebody reads
    }
    try {
      fault = ReadLocked(wait);
    } catch (const std::exception& error) {
      fault = Fault{.text = fmt::format("cannot be heard: {}", error.what())};
    }
    if (fault) Close();
  }
  if (fault && !stopped_) events_.on_fault(*fault);
}

// With read_mutex_. What the peer did wrong, if anything.
std::optional<Fault> Connection::ReadLocked(bool wait) {
  while (!closed_) {
    // What a peer still sends after Stop() must not keep us.
    if (stopped_) return Fault{.closed = false, .text = "was left"};
    const auto space = reader_.Space();
    if (!space) return Fault{.text = fmt::format("cannot be heard: {}", space.error().message)};
    const ssize_t count = recv(socket_.get(), space->data(), space->size(), MSG_DONTWAIT);
    if (count == 0) return EndFault(0);
    if (count > 0) {
      last_received_ = steady_clock::now();
      if (auto fault = Deliver(static_cast<std::size_t>(count))) return fault;
      if (wait) return std::nullopt;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return EndFault(errno);
    const auto silent = steady_clock::now() - last_received_;
    if (silent >= timing_.silence) {
      return Fault{.text = fmt::format("has been silent for {:.1f} s",
                                       std::chrono::duration<double>(silent).count())};
    }
    if (!wait) return std::nullopt;
    Await(socket_.get(), POLLIN, last_received_ + timing_.silence);
  }
  return std::nullopt;
}

std::optional<Fault> Connection::Deliver(std::size_t count) {
  frames_.clear();
  const Status read = reader_.Took(count, frames_);
  for (Frame& frame : frames_) {
    if (stopped_) break;
    if (frame.type == FrameType::kHeartbeat) continue;
    if (const Status taken = events_.on_frame(std::move(frame)); !taken) {
      return Fault{.text = fmt::format("broke the protocol: {}", taken.error().message)};
    }
  }
  if (!read) return Fault{.text = fmt::format("broke the protocol: {}", read.error().message)};
  return std::nullopt;
}

// The end of what the peer says; the reason lies where we failed to write, if we did.
Fault Connection::EndFault(int error_number) {
  const std::scoped_lock lock(send_mutex_);
  const int number = send_fault_ != 0 ? send_fault_ : error_number;
  return {.closed = true, .text = fmt::format("is gone: {}", IoFaultText(number))};
}

void Connection::Stop() {
  stopped_ = true;
  (void)shutdown(socket_.get(), SHUT_RDWR);
  const std::scoped_lock lock(send_mutex_);
  broken_ = true;
  wake_.notify_one();
}

void Connection::Close() {
  (void)shutdown(socket_.get(), SHUT_RDWR);
  {
    const std::scoped_lock lock(send_mutex_);
    broken_ = true;
    wake_.notify_one();
  }
  const std::scoped_lock lock(closed_mutex_);
  closed_ = true;
  closed_wake_.notify_all();
}

bool Connection::AwaitClosed(Deadline deadline) {
  std::unique_lock lock(closed_mutex_);
  return closed_wake_.wait_until(lock, deadline, [this] { return closed_.load(); });
}

}  // namespace syncline::ranks
