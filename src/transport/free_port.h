// For tests and benchmarks: a port that was free a moment ago, for IPv4 and IPv6.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace syncline::transport {

inline std::uint16_t FreePort() {
  const int socket_fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t length = sizeof(address);
  if (socket_fd < 0) return 0;
  (void)bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  (void)getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(socket_fd);
  return ntohs(address.sin6_port);
}

}  // namespace syncline::transport
