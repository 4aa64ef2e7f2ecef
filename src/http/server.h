// An HTTP/1.1 server that knows nothing of what is served: limits, keep-alive, streamed replies,
// and word of clients that go away.
//
// Threads: a fixed number of server threads (ServerOptions::threads) run every connection; each
// connection stays on one of them. A waiting request or an idle stream costs a socket and a few
// kilobytes, never a thread. A handler is called on a server thread and must not block: it answers
// at once, or keeps the Exchange and answers later from any thread.
//
// Requests of one connection are handled one after the other: the next one (pipelined requests
// included) only once the reply to the last one is complete and handed to the kernel.
//
// A client is gone when it closes the connection, resets it, or closes its sending side: a client
// that half-closes (shutdown(SHUT_WR)) and then waits for its reply is taken for gone too. Replies
// that were complete by then are still delivered.
//
// A request that breaks the protocol or a limit is answered by the server itself, with the status
// 400, 408, 413, 431 or 501 and the body {"error":{"message":"…"}}, and its connection is closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace syncline::http {

struct Request {
  std::string method;  // as sent: methods are case-sensitive and upper case
  std::string path;    // percent-decoded, without the query
  std::vector<std::pair<std::string, std::string>> query;    // percent-decoded, in order
  std::vector<std::pair<std::string, std::string>> headers;  // as sent, in order
  std::string body;
  std::string peer;  // "127.0.0.1:51234" or "[::1]:51234"

  // The first one of that name; null if there is none. Header names are compared without case.
  const std::string* Header(std::string_view name) const;
  const std::string* Query(std::string_view name) const;
};

struct Response {
  int status = 200;                               // 200 to 599; anything else is sent as 500
  std::string content_type = "application/json";  // empty: no such header
  std::string body;
  // Those that the server writes itself (Connection, Content-Length, Content-Type, Date,
  // Transfer-Encoding) and malformed ones are left out.
  std::vector<std::pair<std::string, std::string>> headers;
};

// The reply to one request. Thread-safe; no method blocks or runs code of the caller. Exactly one
// of Send or BeginStream … End; calls that come too late (the reply is complete, the client has
// gone, or the server has stopped) do nothing. An Exchange that is dropped without a reply answers
// 500; one dropped inside a stream resets the connection, so that the client cannot take the reply
// for whole. May outlive the Server.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void Send(Response response) = 0;

  // Chunked transfer; a client of HTTP/1.0 gets a reply that ends with the connection. Every
  // non-empty Write is sent as one chunk; nothing is coalesced for longer than the socket is busy.
  // A Write that finds more than ServerOptions::max_unsent_bytes still waiting resets the
  // connection: the client does not read.
  virtual void BeginStream(int status, std::string content_type) = 0;
  virtual void Write(std::string chunk) = 0;
  virtual void End() = 0;

  // `callback` is called once, on a server thread, if the client goes away (or is disconnected by a
  // limit, or by Stop) before the reply is complete; soon, if it has gone already. It must not
  // block. It is destroyed uncalled once the reply is complete.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
};

// An exception that leaves a handler is logged and answered with 500 (inside a stream, with a
// reset).
using Handler = std::function<void(std::shared_ptr<const Request>, std::shared_ptr<Exchange>)>;

struct TlsOptions {
  std::string certificate_file;  // PEM: the server's own one, then those that lead to its authority
  std::string key_file;          // PEM
  std::string key_password;      // empty: none
};

struct ServerOptions {
  std::string address = "127.0.0.1";  // IPv4 or IPv6; "::" takes both
  std::uint16_t port = 0;             // 0: any free one
  std::size_t threads = 1;
  std::size_t max_connections = 16384;        // more are accepted and closed at once
  std::size_t max_header_bytes = 64 << 10;    // request line and headers, or trailers: 431
  std::uint64_t max_body_bytes = 1ULL << 30;  // 413
  std::size_t max_unsent_bytes = 16 << 20;    // of a stream
  // From the first byte of a request to the end of its headers, and the longest pause inside its
  // body: 408 and close. Of the handshake of TLS: close.
  std::chrono::milliseconds header_timeout = std::chrono::seconds(30);
  // Of a connection between requests, and of a client that takes no byte of what waits to be sent.
  // Timeouts are checked at least four times in their length or once a second.
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(300);
  std::optional<TlsOptions> tls;  // HTTPS, of TLS 1.2 or newer, and nothing else
};

class Server {
 public:
  // Listens when it returns. kInvalidArgument for an address that is none, for no threads, and for
  // files of TLS that do not do,
  // kUnavailable where the port is taken, kPermissionDenied where it is not ours to take.
  static base::Result<std::unique_ptr<Server>> Start(const ServerOptions& options, Handler handler);
  virtual ~Server() = default;  // Stop(0)

  virtual std::uint16_t port() const = 0;
  virtual std::size_t connections() const = 0;  // open ones, busy or idle

  // Takes no new connection and no new request; waits at most `drain` for running replies, then
  // closes everything. Connections without a running reply are closed at once. After it no handler
  // and no callback runs. Not to be called from a handler or a callback, which it waits for.
  virtual void Stop(std::chrono::milliseconds drain) = 0;
};

}  // namespace syncline::http
