// A connection goes through these phases:
//
// 1. kReading: waits for a request (no reader_), or reads one (reader_).
// 2. kReplying: the handler has the request. What the client sends meanwhile is kept in pending_,
//    up to kMaxPending and one read more; a read stays outstanding, so that the end of the client
//    is noticed. Once the reply is complete and written: back to 1, or to 4.
// 3. kClosing: a refusal is being written, input is discarded; then 4.
// 4. kLingering: our side is closed. Closing the socket while the client still sends would reset
//    the connection, and the client could lose the reply: so input is discarded until the client
//    closes, or for kLingerTime.
// 5. kClosed: the socket is closed and the shard has forgotten the connection.
//
// Invariants: queue_ holds bytes of one reply only (or an interim one); in every phase but kClosed
// OnReadable is due, or pending_ is full, or the client has closed its side.
#include "http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "base/log.h"
#include "http/reply_head.h"
#include "http/shard.h"

namespace syncline::http {
namespace {

constexpr std::size_t kMaxPending = 64 << 10;
// From this size on the rest of a body is read to its place; below it, reading more than the body
// saves a call.
constexpr std::uint64_t kDirectBytes = 16 << 10;
constexpr int kWritesPerTurn = 4;  // then other connections have theirs
constexpr std::chrono::milliseconds kLingerTime(5000);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

Connection::Time In(std::chrono::milliseconds delay) {
  return std::chrono::steady_clock::now() + delay;
}

}  // namespace

Connection::Connection(Shard& shard, std::unique_ptr<Socket> socket, std::string peer)
    : shard_(shard), socket_(std::move(socket)), peer_(std::move(peer)) {}

// Keeps the connection alive while it works, and ends it where memory or anything else runs out.
template <typename Step>
void Connection::Guard(const Step& step) {
  const auto self = shared_from_this();
  if (phase_ == Phase::kClosed) return;
  try {
    step();
  } catch (const std::exception& error) {
    base::Log(base::LogLevel::kError, fmt::format("http: {} is cut off: {}", peer_, error.what()));
    Terminate(true);
  }
}

void Connection::Start() {
  Guard([&] {
    AwaitRequest();
    WaitToRead();
  });
}

void Connection::OnReadable() {
  waits_to_read_ = false;
  Guard([&] {
    Read();
    WaitToRead();
  });
}

void Connection::OnWritable() {
  waits_to_write_ = false;
  Guard([&] { Flush(); });
}

void Connection::OnReplyOutput(Reply& reply) {
  Guard([&] {
    if (&reply == reply_.get()) TakeOutput();
  });
}

void Connection::AwaitRequest() {
  phase_ = Phase::kReading;
  reader_.reset();
  establishing_ = socket_->Establishing();
  const ServerOptions& options = shard_.options();
  deadline_ = In(establishing_ ? options.header_timeout : options.idle_timeout);
}

bool Connection::MayRead() const {
  if (phase_ == Phase::kClosed || input_closed_) return false;
  return phase_ != Phase::kReplying || pending_.size() < kMaxPending;
}

void Connection::WaitToRead() {
  if (waits_to_read_ || !MayRead()) return;
  waits_to_read_ = true;
  socket_->WaitReadable(shared_from_this());
}

void Connection::WaitToWrite() {
  if (waits_to_write_) return;
  waits_to_write_ = true;
  socket_->WaitWritable(shared_from_this());
}

// --- Input ---

void Connection::Read() {
  if (!MayRead()) return;
  if (phase_ == Phase::kReading && reader_ && reader_->body_bytes_ahead() >= kDirectBytes) {
    return ReadBody();
  }
  const std::span<char> scratch = shard_.scratch();
  const IoResult result = socket_->Read(scratch);
  if (establishing_ && !socket_->Establishing()) AwaitRequest();
  if (result.kind == IoResult::Kind::kBlocked) return;
  if (result.kind == IoResult::Kind::kClosed) return OnPeerClosed();
  Consume({scratch.data(), result.bytes});
}

void Connection::ReadBody() {
  IoResult result;
  reader_->ReadBody([&](std::span<char> place) {
    result = socket_->Read(place);
    return result.bytes;
  });
  if (result.kind == IoResult::Kind::kBlocked) return;
  if (result.kind == IoResult::Kind::kClosed) return OnPeerClosed();
  AfterInput(RequestReader::Stage::kBody);
}

void Connection::Consume(std::string_view bytes) {
  while (!bytes.empty() && phase_ == Phase::kReading) {
    if (reader_ == nullptr) {
      const ServerOptions& options = shard_.options();
      reader_ = std::make_unique<RequestReader>(ReadLimits{.header_bytes = options.max_header_bytes,
                                                           .body_bytes = options.max_body_bytes});
    }
    const RequestReader::Stage before = reader_->stage();
    bytes.remove_prefix(reader_->Feed(bytes));
    AfterInput(before);
  }
  if (phase_ == Phase::kReplying && keep_alive_) pending_.append(bytes);
}

void Connection::AfterInput(RequestReader::Stage before) {
  const RequestReader::Stage stage = reader_->stage();
  switch (stage) {
    case RequestReader::Stage::kStart:
      reader_.reset();
      break;
    case RequestReader::Stage::kHeaders:
      // More headers give no more time.
      if (before != stage) deadline_ = In(shard_.options().header_timeout);
      break;
    case RequestReader::Stage::kBody:
      deadline_ = In(shard_.options().header_timeout);
      if (reader_->TakeExpectation()) {
        queue_.Append(kContinue);
        Flush();
      }
      break;
    case RequestReader::Stage::kDone:
      Dispatch();
      break;
    case RequestReader::Stage::kFailed:
      Refuse(reader_->failure().status, reader_->failure().message);
      break;
  }
}

void Connection::Dispatch() {
  ReplyTraits traits = reader_->traits();
  if (shard_.stopping()) traits.keep_alive = false;
  auto request = std::make_shared<Request>(reader_->TakeRequest());
  request->peer = peer_;
  reader_.reset();

  phase_ = Phase::kReplying;
  deadline_ = Time::max();  // a handler may take its time
  keep_alive_ = traits.keep_alive;
  reply_complete_ = false;
  reply_ = std::make_shared<Reply>(traits, shard_.options().max_unsent_bytes, shard_.loop(),
                                   weak_from_this());
  const auto abandon = [&](std::string_view what) {
    base::Log(base::LogLevel::kError, fmt::format("http: the handler of {} {} threw: {}",
                                                  request->method, request->path, what));
    reply_->Abandon("internal error");
  };
  try {
    shard_.handler()(request, MakeExchange(reply_));
  } catch (const std::exception& error) {
    abandon(error.what());
  } catch (...) {
    abandon("something that is no std::exception");
  }
}

void Connection::OnPeerClosed() {
  input_closed_ = true;
  if (phase_ == Phase::kReplying) TakeOutput();  // the reply may be complete by now
  const bool delivers =
      (phase_ == Phase::kReplying && reply_complete_) || phase_ == Phase::kClosing;
  if (!delivers) Terminate(false);
}

// --- Output ---

void Connection::Refuse(int status, std::string_view message) {
  // The framing of the input is lost, or given up: nothing can follow on this connection.
  queue_.Append(FormatError(status, message, false, false, false));
  phase_ = Phase::kClosing;
  deadline_ = Time::max();
  keep_alive_ = false;
  reader_.reset();
  Flush();
}

void Connection::TakeOutput() {
  const Reply::Output output = reply_->Take(queue_);
  if (output.reset) return Terminate(true);
  reply_complete_ = output.complete;
  keep_alive_ = output.keep_alive;
  if (!waits_to_write_) Flush();
}

void Connection::Flush() {
  bool moved = false;
  for (int i = 0; i < kWritesPerTurn && !queue_.empty(); ++i) {
    WriteQueue::Pieces pieces;
    const IoResult result = socket_->Write(queue_.Front(pieces));
    if (result.kind == IoResult::Kind::kBlocked) break;
    if (result.kind == IoResult::Kind::kClosed) return Terminate(false);
    queue_.Consume(result.bytes);
    moved = true;
  }
  if (reply_) reply_->SetQueued(queue_.bytes());
  if (queue_.empty()) return OnFlushed();
  const bool overdue_counts = phase_ == Phase::kReplying || phase_ == Phase::kClosing;
  if (overdue_counts && (moved || deadline_ == Time::max())) {
    deadline_ = In(shard_.options().idle_timeout);
  }
  WaitToWrite();
}

void Connection::OnFlushed() {
  if (phase_ == Phase::kClosing) return Linger();
  if (phase_ != Phase::kReplying) return;
  deadline_ = Time::max();
  if (reply_complete_) FinishReply();
}

void Connection::FinishReply() {
  reply_.reset();
  if (input_closed_ || shard_.stopping()) return Terminate(false);
  if (!keep_alive_) return Linger();
  AwaitRequest();
  std::string pending;
  pending.swap(pending_);
  Consume(pending);
  WaitToRead();
}

void Connection::Linger() {
  if (input_closed_) return Terminate(false);
  phase_ = Phase::kLingering;
  std::string().swap(pending_);
  socket_->ShutdownWrite();
  deadline_ = In(std::min(kLingerTime, shard_.options().idle_timeout));
  WaitToRead();
}

// --- End ---

void Connection::CheckTime(Time now) {
  Guard([&] {
    // With pending_ full no read is outstanding, so the end of the client has to be asked for.
    if (!MayRead() && !input_closed_ && socket_->PeerHasClosed()) return OnPeerClosed();
    if (now < deadline_) return;
    if (phase_ == Phase::kReading && reader_) {
      return Refuse(408, "the request did not arrive in time");
    }
    // In the other phases the client waits for nothing, or takes nothing.
    Terminate(phase_ == Phase::kReplying || phase_ == Phase::kClosing);
  });
}

void Connection::Drain() {
  Guard([&] {
    if (phase_ != Phase::kReplying) return Terminate(false);
    keep_alive_ = false;
    reply_->ForbidKeepAlive();
  });
}

void Connection::Terminate(bool reset) {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  // A reply that is cut short must not look whole, which one that ends with the connection would.
  const bool cut_short = reply_ != nullptr && !(reply_complete_ && queue_.empty());
  if (reset || (cut_short && !input_closed_)) {
    socket_->Reset();
  } else {
    socket_->Close();
  }
  shard_.Remove(*this);
  if (reply_) reply_->Disconnect();
  reply_.reset();
  reader_.reset();
  std::string().swap(pending_);
  queue_.Clear();
}

}  // namespace syncline::http
