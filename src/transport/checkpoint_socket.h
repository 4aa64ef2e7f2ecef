// The receiving end of checkpoint-engine's socket: a producer on this host shows one buffer of
// shared memory, says again and again which tensors lie in it, and waits for each answer before it
// writes there anew. Messages are read as data (payload/checkpoint_message.h).
//
//   producer                          answer
//   handle of the buffer              empty
//   list of tensors, any number       empty once they are loaded
//   None: buffer no longer needed     empty, and it is mapped no longer
//   None: the end                     by Finish
//   an exception: gives up            none
// What fails is answered with the error's text. A producer that hears it gives up; whatever it says
// until then is answered with the same text.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "payload/payload.h"

namespace syncline::transport {

class CheckpointSocket {
 public:
  // `endpoint`: ipc:// with a path or abstract name, or tcp:// with a port of this host's loopback;
  // kInvalidArgument for any other. Nobody need be there yet. `timeout`: for each message, and for
  // the end of a producer that was told of an error. `cancel` may be null; else it must outlive
  // this.
  static base::Result<std::unique_ptr<CheckpointSocket>> Connect(const std::string& endpoint,
                                                                 std::chrono::milliseconds timeout,
                                                                 const base::CancelToken* cancel);
  // Closes. A message that waits for its answer gets none.
  virtual ~CheckpointSocket() = default;

  // Has taken all that it needs of a batch when it returns.
  using Load = std::function<base::Status(const payload::Batch&)>;

  // All messages up to the end, whose answer Finish gives. To be called once. After an error,
  // `load`'s or one of these, the producer has been told and Finish does nothing.
  //   kInvalidArgument  a message that is none, or out of its turn
  //   kCorrupt          the shared memory became smaller
  //   kTimeout          no message within the time
  //   kUnavailable      the producer went away, gave up, or sent a message of more than 64 MiB
  //   kCancelled
  virtual base::Status Receive(const Load& load) = 0;

  // Answers the end.
  virtual void Finish(const base::Status& outcome) = 0;
};

}  // namespace syncline::transport
