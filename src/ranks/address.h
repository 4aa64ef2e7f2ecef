// Where a process of the group listens or is found: text to address, address to sockets.
//
// All functions are thread-safe. Errors name the address and the reason; kInvalidArgument means
// that the text is no address, kTimeout that time ran out, kUnavailable anything that may be
// different later (a name that does not resolve, nobody listens, the port is in use).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"

namespace syncline::ranks {

using Deadline = std::chrono::steady_clock::time_point;

struct Address {
  std::string
      host;  // a name, an IPv4 address, or an IPv6 address without brackets ("fe80::1%eth0")
  std::uint16_t port = 0;

  bool operator==(const Address&) const = default;
};

// "host:port", "10.0.0.1:29500", "[::1]:29500", "[fe80::1%eth0]:29500". The port may be missing
// ("host", "::1", "[::1]") where there is a default.
base::Result<Address> ParseAddress(std::string_view text,
                                   std::optional<std::uint16_t> default_port = std::nullopt);

// What ParseAddress reads; an IPv6 address stands in brackets.
std::string ToText(const Address& address);

// One numeric address of a host, as the socket calls want it.
struct Endpoint {
  int family = 0;
  std::vector<std::byte> sockaddr;

  bool operator==(const Endpoint&) const = default;
};

// All addresses of `address.host`, in the system's order of preference, at least one. A name is
// looked up on a thread of its own that is left behind when the deadline passes first.
base::Result<std::vector<Endpoint>> Resolve(const Address& address, Deadline deadline,
                                            const base::CancelToken* cancel = nullptr);

// "10.0.0.2", "fe80::1%eth0"; an IPv4 address inside IPv6 is written as IPv4.
std::string HostText(const Endpoint& endpoint);

// The address of this host from which it reaches that one: at which, without translation between
// them, the other can reach it. Nothing is sent.
base::Result<std::string> OwnHostTowards(const Address& address, Deadline deadline);

}  // namespace syncline::ranks
