#include "ranks/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace syncline::ranks {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxName = 253;
constexpr milliseconds kCancelPeriod{20};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameCharacter(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
         c == '_';
}

// With or without a zone.
bool IsIpv6(std::string_view host) {
  const std::size_t percent = host.find('%');
  if (percent != std::string_view::npos) {
    const std::string_view zone = host.substr(percent + 1);
    if (zone.empty() || zone.size() >= IF_NAMESIZE || !std::ranges::all_of(zone, IsNameCharacter)) {
      return false;
    }
    host = host.substr(0, percent);
  }
  in6_addr ignored{};
  return inet_pton(AF_INET6, std::string(host).c_str(), &ignored) == 1;
}

Status CheckHost(std::string_view host, std::string_view text) {
  const auto fail = [&](std::string_view reason) {
    return Fail(Code::kInvalidArgument, fmt::format("\"{}\" is no address: {}", text, reason));
  };
  if (host.empty()) return fail("it names no host");
  if (host.contains(':')) {
    if (IsIpv6(host)) return {};
    return fail("expected host:port or [IPv6 address]:port");
  }
  if (host.size() > kMaxName || !std::ranges::all_of(host, IsNameCharacter)) {
    return fail("that is no host name");
  }
  return {};
}

// Both without brackets; port: nothing if there is none.
struct Parts {
  std::string_view host;
  std::optional<std::string_view> port;
};

Result<Parts> Split(std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    const std::string_view rest = close == std::string_view::npos ? "" : text.substr(close + 1);
    const bool ipv6 = close != std::string_view::npos && IsIpv6(text.substr(1, close - 1));
    if (!ipv6 || (!rest.empty() && rest.front() != ':')) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("\"{}\" is no address: expected [IPv6 address]:port", text));
    }
    Parts parts{.host = text.substr(1, close - 1), .port = std::nullopt};
    if (!rest.empty()) parts.port = rest.substr(1);
    return parts;
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos) {
    return Parts{.host = text, .port = std::nullopt};  // a name, or an IPv6 address
  }
  return Parts{.host = text.substr(0, colon), .port = text.substr(colon + 1)};
}

Result<std::vector<Endpoint>> Take(int fault, addrinfo* list, const Address& address) {
  if (fault != 0) {
    return Fail(Code::kUnavailable,
                fmt::format("cannot resolve {}: {}", ToText(address), gai_strerror(fault)));
  }
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(one->ai_addr);
    Endpoint endpoint{one->ai_family, {bytes, bytes + one->ai_addrlen}};
    // A file of hosts may name the same address twice.
    if (std::ranges::find(endpoints, endpoint) == endpoints.end()) {
      endpoints.push_back(std::move(endpoint));
    }
  }
  freeaddrinfo(list);
  if (endpoints.empty()) {
    return Fail(Code::kUnavailable,
                fmt::format("cannot resolve {}: it has no IP address", ToText(address)));
  }
  return endpoints;
}

Result<std::vector<Endpoint>> LookUp(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int fault =
      getaddrinfo(address.host.c_str(), fmt::format("{}", address.port).c_str(), &hints, &list);
  return Take(fault, list, address);
}

// Of both families on every host (RFC 6761), though many a file of hosts names only one.
Result<std::vector<Endpoint>> Loopbacks(std::uint16_t port) {
  std::vector<Endpoint> endpoints;
  for (const char* const host : {"127.0.0.1", "::1"}) {
    SYNCLINE_ASSIGN(std::vector<Endpoint> found, LookUp({host, port}, AI_NUMERICHOST));
    endpoints.push_back(std::move(found.front()));
  }
  return endpoints;
}

// Shared with the thread that looks a name up, which may outlive who asked.
struct LookUpState {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<Result<std::vector<Endpoint>>> result;  // guarded by mutex
};

}  // namespace

Result<Address> ParseAddress(std::string_view text, std::optional<std::uint16_t> default_port) {
  SYNCLINE_ASSIGN(const Parts parts, Split(text));
  SYNCLINE_TRY(CheckHost(parts.host, text));
  if (!parts.port) {
    if (default_port) return Address{std::string(parts.host), *default_port};
    return Fail(Code::kInvalidArgument, fmt::format("\"{}\" is no address: it has no port", text));
  }
  const std::string_view digits = *parts.port;
  std::uint16_t port = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (fault != std::errc() || end != digits.data() + digits.size()) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("\"{}\" is no address: the port is \"{}\", expected 0 to 65535", text, digits));
  }
  return Address{std::string(parts.host), port};
}

std::string ToText(const Address& address) {
  const bool ipv6 = address.host.contains(':');
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", address.host, ipv6 ? "]" : "", address.port);
}

Result<std::vector<Endpoint>> Resolve(const Address& address, Deadline deadline,
                                      const base::CancelToken* cancel) {
  if (address.host == "localhost") return Loopbacks(address.port);
  // A number needs no thread.
  if (auto numeric = LookUp(address, AI_NUMERICHOST)) return numeric;
  if (address.host.contains(':')) return LookUp(address, AI_NUMERICHOST);
  const auto timed_out = [&address] {
    return Fail(Code::kTimeout, fmt::format("cannot resolve {}: timed out", ToText(address)));
  };
  if (steady_clock::now() >= deadline) return timed_out();
  auto state = std::make_shared<LookUpState>();
  try {
    std::thread([state, address] {
      auto result = LookUp(address, 0);
      const std::scoped_lock lock(state->mutex);
      state->result = std::move(result);
      state->done.notify_all();
    }).detach();
  } catch (const std::exception& error) {
    return Fail(Code::kUnavailable,
                fmt::format("cannot resolve {}: {}", ToText(address), error.what()));
  }
  std::unique_lock lock(state->mutex);
  while (!state->result) {
    const auto now = steady_clock::now();
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    if (now >= deadline) return timed_out();
    state->done.wait_until(lock, std::min(deadline, now + kCancelPeriod));
  }
  return *std::move(state->result);
}

std::string HostText(const Endpoint& endpoint) {
  std::array<char, NI_MAXHOST> host{};
  const auto* address = reinterpret_cast<const sockaddr*>(endpoint.sockaddr.data());
  const int fault = getnameinfo(address, static_cast<socklen_t>(endpoint.sockaddr.size()),
                                host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  if (fault != 0) return "unknown";
  const std::string_view text = host.data();
  constexpr std::string_view kMapped = "::ffff:";
  const bool mapped = text.starts_with(kMapped) && text.contains('.');
  return std::string(mapped ? text.substr(kMapped.size()) : text);
}

Result<std::string> OwnHostTowards(const Address& address, Deadline deadline) {
  SYNCLINE_ASSIGN(const std::vector<Endpoint> endpoints, Resolve(address, deadline));
  int error = 0;
  for (const Endpoint& endpoint : endpoints) {
    // Connecting a datagram socket only looks up the route.
    const int fd = socket(endpoint.family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    Endpoint own = {.family = endpoint.family,
                    .sockaddr = std::vector<std::byte>(sizeof(sockaddr_storage))};
    auto size = static_cast<socklen_t>(own.sockaddr.size());
    const bool found =
        connect(fd, reinterpret_cast<const sockaddr*>(endpoint.sockaddr.data()),
                static_cast<socklen_t>(endpoint.sockaddr.size())) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(own.sockaddr.data()), &size) == 0;
    error = errno;
    close(fd);
    if (!found) continue;
    own.sockaddr.resize(size);
    return HostText(own);
  }
  return Fail(Code::kUnavailable, fmt::format("no way to {}: {}", ToText(address),
                                              std::generic_category().message(error)));
}

}  // namespace syncline::ranks
