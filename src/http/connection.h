// One connection of a client, on one server thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "http/event_loop.h"
#include "http/reply.h"
#include "http/request_reader.h"
#include "http/write_queue.h"

namespace syncline::http {

class Shard;

// Used on the thread of its shard only.
class Connection final : public SocketEvents,
                         public ReplySink,
                         public std::enable_shared_from_this<Connection> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Connection(Shard& shard, std::unique_ptr<Socket> socket, std::string peer);

  void Start();
  void CheckTime(Time now);    // acts on what is overdue
  void Drain();                // finishes a running reply, and ends
  void Terminate(bool reset);  // ends at once; the shard forgets it

  void OnReadable() override;
  void OnWritable() override;
  void OnReplyOutput(Reply& reply) override;

  // Its place in the shard's list.
  std::size_t slot() const { return slot_; }
  void set_slot(std::size_t slot) { slot_ = slot; }

 private:
  enum class Phase { kReading, kReplying, kClosing, kLingering, kClosed };

  template <typename Step>
  void Guard(const Step& step);

  void AwaitRequest();
  void Read();
  void ReadBody();
  void Consume(std::string_view bytes);
  void AfterInput(RequestReader::Stage before);
  void Dispatch();
  void Refuse(int status, std::string_view message);
  void OnPeerClosed();
  void TakeOutput();
  void Flush();
  void OnFlushed();
  void FinishReply();
  void Linger();
  bool MayRead() const;
  void WaitToRead();
  void WaitToWrite();

  Shard& shard_;
  const std::unique_ptr<Socket> socket_;
  const std::string peer_;
  std::size_t slot_ = 0;

  Phase phase_ = Phase::kReading;
  bool keep_alive_ = true;                 // after the running reply
  bool establishing_ = false;              // the handshake is not over
  bool input_closed_ = false;              // the client has closed its side
  bool reply_complete_ = false;            // all of the running reply is in queue_
  bool waits_to_read_ = false;             // a call of OnReadable is due
  bool waits_to_write_ = false;            // a call of OnWritable is due
  Time deadline_ = Time::max();            // of the phase
  std::unique_ptr<RequestReader> reader_;  // from the first byte of a request to its last
  std::shared_ptr<Reply> reply_;           // in kReplying
  std::string pending_;                    // what the client sent after the running request
  WriteQueue queue_;
};

}  // namespace syncline::http
