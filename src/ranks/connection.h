// One TCP connection of a joined group, from either side: frames out, frames in, signs of life.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ranks/address.h"
#include "ranks/protocol.h"
#include "ranks/socket.h"

namespace syncline::ranks {

struct Timing {
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{3000};
};

enum class Reading {
  kThread,  // a thread of the connection delivers frames as they come
  kCaller,  // whoever calls ReadSome() does; what comes while nobody does waits for the next beat
};

// The end of a connection that we did not end.
struct Fault {
  bool closed = false;  // by the peer, which may have told the reason on another connection
  std::string text;  // behind its name: "is gone: connection closed", "has been silent for 3.0 s"
};

// All methods are thread-safe.
class Connection {
 public:
  struct Events {
    // Every frame but heartbeats, one at a time, on the thread that reads. An error means that the
    // peer broke the protocol, and is a fault.
    std::function<base::Status(Frame)> on_frame;
    // Once, without a lock, on a thread that reads; does not begin after Stop().
    std::function<void(const Fault&)> on_fault;
  };

  Connection(Descriptor socket, Timing timing, Reading reading, Events events);
  ~Connection();  // as End()
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Events may come from here on. kLimitExceeded: the system has no thread for us.
  base::Status Start();

  // Never waits for the peer: writes what the network takes at once, a thread writes the rest.
  // Dropped after SendLast(), a fault or Stop(). No fault is reported from here.
  void Send(const OutgoingFrame& frame);

  // As Send(); then the connection says nothing more, and is shut down at the latest by `deadline`.
  // With `overtake` it takes the place of every frame that has not been begun.
  void SendLast(const OutgoingFrame& frame, bool overtake, Deadline deadline);

  // kCaller: waits until bytes have come, and delivers what is complete. False: nothing will come
  // any more, after a fault (on_fault may still be on its way) or Stop().
  bool ReadSome();

  // Ends both directions at once. May be called from events.
  void Stop();

  // Stop(), and no event comes after it. Not from events, nor by two threads at once.
  void End();

  // Waits until the peer has closed, a fault or Stop(); false: not by the deadline.
  bool AwaitClosed(Deadline deadline);

 private:
  struct Outgoing {
    FrameHeaderBytes header;
    std::shared_ptr<const std::vector<std::byte>> payload;
    std::size_t sent = 0;  // of both together
    bool begun = false;    // the writing thread has it

    explicit Outgoing(const OutgoingFrame& frame);
    std::size_t size() const { return header.size() + (payload ? payload->size() : 0); }
  };

  int WriteNow(Outgoing& item);
  void SendLocked(const OutgoingFrame& frame);
  void BreakSending(int error_number);
  void Write();
  void WriteFront(std::unique_lock<std::mutex>& lock);
  void Beat(std::unique_lock<std::mutex>& lock);

  void Read();
  void ReadAndReport(bool wait);
  std::optional<Fault> ReadLocked(bool wait);
  std::optional<Fault> Deliver(std::size_t count);
  Fault EndFault(int error_number);
  void Close();

  const Descriptor socket_;
  const Timing timing_;
  const Reading reading_;
  const Events events_;

  std::mutex send_mutex_;
  std::condition_variable wake_;
  std::deque<Outgoing> queue_;                       // guarded by send_mutex_
  bool last_ = false;                                // guarded by send_mutex_
  bool broken_ = false;                              // guarded by send_mutex_
  int send_fault_ = 0;                               // errno; guarded by send_mutex_
  Deadline close_at_;                                // if last_; guarded by send_mutex_
  std::chrono::steady_clock::time_point next_beat_;  // of the writing thread

  std::mutex read_mutex_;
  FrameReader reader_;                                   // guarded by read_mutex_
  std::vector<Frame> frames_;                            // guarded by read_mutex_
  std::chrono::steady_clock::time_point last_received_;  // guarded by read_mutex_

  std::mutex closed_mutex_;
  std::condition_variable closed_wake_;
  std::atomic<bool> closed_ = false;  // nothing is read any more
  std::atomic<bool> stopped_ = false;

  std::thread writer_;
  std::thread reader_thread_;
};

}  // namespace syncline::ranks
