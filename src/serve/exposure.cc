#include "serve/exposure.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>

namespace syncline::serve {

using base::Code;
using base::Fail;
using base::Result;

Result<std::vector<std::string>> ResolveBySystem(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    return Fail(Code::kInvalidArgument, fmt::format("--host {}: expected an address or a name: {}",
                                                    host, gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::array<char, NI_MAXHOST> text = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text.data());
    }
  }
  return addresses;
}

bool IsLoopback(const std::string& address) {
  in_addr v4 = {};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1) return false;
  const bool mapped_loopback = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6) || mapped_loopback;
}

Result<std::string> AddressToListenAt(const Options& options, const Resolver& resolve) {
  SYNCLINE_ASSIGN(const std::vector<std::string> addresses, resolve(options.host));
  if (addresses.empty()) {
    return Fail(Code::kInvalidArgument, fmt::format("--host {}: has no address", options.host));
  }
  const bool guarded = !options.keys.none() || options.allow_unauthenticated;
  if (!guarded && !std::ranges::all_of(addresses, IsLoopback)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("--host {} ({}): other machines could reach the engine and replace its "
                            "weights, and no key is set: expected --api-key-file or "
                            "--admin-api-key-file, or, if that is wanted, --allow-unauthenticated",
                            options.host, fmt::join(addresses, ", ")));
  }
  return addresses.front();
}

}  // namespace syncline::serve
