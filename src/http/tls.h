// TLS 1.2 and 1.3 over the sockets of an event loop: connections see a socket like any other.
#pragma once

#include <memory>

#include "base/error.h"
#include "http/event_loop.h"
#include "http/server.h"

namespace syncline::http {

// A certificate and its key, read once. Thread-safe.
class TlsContext {
 public:
  // kInvalidArgument, naming the file, for one that cannot be read, is none, or does not fit the
  // other one.
  static base::Result<std::unique_ptr<TlsContext>> Make(const TlsOptions& options);
  virtual ~TlsContext() = default;

  // The server's side of a connection over `inner`, on the thread of `loop`. Its reads and writes
  // do the handshake first. Throws std::bad_alloc.
  virtual std::unique_ptr<Socket> Wrap(std::unique_ptr<Socket> inner,
                                       std::shared_ptr<EventLoop> loop) = 0;
};

}  // namespace syncline::http
