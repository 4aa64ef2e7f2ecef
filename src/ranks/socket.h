// TCP sockets of the room: listening, connecting, and moving bytes before a deadline.
//
// All sockets are non-blocking, closed on exec, and send at once (TCP_NODELAY). Writing to a closed
// connection is an error, never a signal. Errors are those of address.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "ranks/address.h"

namespace syncline::ranks {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return number_; }
  bool open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Listens on every address of a host, with one port for all.
class Listener {
 public:
  static base::Result<Listener> Open(const Address& address, Deadline deadline,
                                     const base::CancelToken* cancel);

  std::uint16_t port() const { return port_; }
  const std::vector<Descriptor>& sockets() const { return sockets_; }

 private:
  std::vector<Descriptor> sockets_;
  std::uint16_t port_ = 0;
};

struct Accepted {
  Descriptor socket;  // not open: nobody is there (any more)
  std::string host;   // numeric
};

// Takes a waiting connection, if there is one. kIo and the like: the process is out of descriptors.
base::Result<Accepted> Accept(const Descriptor& listener);

// Tries the addresses of the host one after the other, each with its share of the time that is
// left.
base::Result<Descriptor> Connect(const Address& address, Deadline deadline,
                                 const base::CancelToken* cancel);

// All of `from`, or all of `into`, or an error: kUnavailable "connection closed", kTimeout,
// kCancelled. Messages do not name the peer.
base::Status WriteAll(const Descriptor& socket, base::ByteSpan from, Deadline deadline,
                      const base::CancelToken* cancel);
base::Status ReadAll(const Descriptor& socket, base::MutableByteSpan into, Deadline deadline,
                     const base::CancelToken* cancel);

// What a failed read or write means: "connection closed" for every way in which a peer goes away.
std::string IoFaultText(int error_number);

}  // namespace syncline::ranks
