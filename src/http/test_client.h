// For tests: a client of raw sockets that can send any bytes, in any pieces, and a server with
// little ado. Everything that waits gives up after a long time, so that a fault is a failed test
// and no hang.
//
// With SYNCLINE_TEST_TLS in the environment, both talk TLS, so that the same tests run over it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/server.h"

namespace syncline::http {

inline constexpr std::chrono::seconds kPatience(30);
inline constexpr int kPatienceMs = 30000;

// Something that happens once on one thread and is waited for on another.
class Signal {
 public:
  void Set();
  bool Wait(std::chrono::milliseconds at_most = kPatience);  // whether it has happened

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

struct ClientReply {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  std::string Header(std::string_view name) const;  // empty: none
};

// Is it in the environment?
bool TestsUseTls();

class TestClient {
 public:
  // What speaks TLS of itself sends and reads what is given, also where the tests use TLS.
  enum class Transport { kPlain, kTls };
  explicit TestClient(std::uint16_t port, const char* address = "127.0.0.1",
                      Transport transport = TestsUseTls() ? Transport::kTls : Transport::kPlain);
  ~TestClient();
  TestClient(TestClient&& other) noexcept;
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  TestClient& operator=(TestClient&&) = delete;

  bool connected() const { return socket_ >= 0; }
  int socket() const { return socket_; }

  bool Send(std::string_view bytes);  // all of them; false: the connection is broken
  // As much as the kernels take until nothing moves for a while; returns how much.
  std::size_t SendUntilBlocked(std::string_view bytes);

  // Nothing if the connection ends before a whole reply, or none comes in time. A reply without
  // framing ends with the connection.
  std::optional<ClientReply> ReadReply(bool head_only = false);
  std::optional<ClientReply> ReadHead();
  // The data of the next chunk, empty for the last one.
  std::optional<std::string> ReadChunk();

  enum class End { kClosed, kReset, kData, kNothing };
  End ReadEnd();  // what comes next: an end of the connection, data, or nothing in time

  End SkipToEnd();  // the end of the connection, after whatever data
  bool HasData();   // or an end; now

  void ShutdownWrite();
  void Close();
  void Reset();  // closes so that the server sees an error

 private:
  bool Fill(int milliseconds = kPatienceMs);  // reads more into buffer_
  std::optional<std::string> ReadLine();
  std::optional<std::string> ReadBytes(std::size_t bytes);

  struct Tls;  // of the client's side; the handshake is done by the first bytes
  ssize_t SendSome(std::string_view bytes);  // as send(2) and recv(2) that do not wait
  ssize_t ReadSome(std::span<char> to);
  // For what the last of them lacked.
  bool WaitToSend(int milliseconds) const;
  bool WaitToRead(int milliseconds) const;

  int socket_ = -1;
  std::unique_ptr<Tls> tls_;  // null: plain
  std::string buffer_;
  std::size_t used_ = 0;  // of buffer_
  End end_ = End::kNothing;
};

// "GET path HTTP/1.1" with a Host header and `extra` headers ("A: b\r\n").
std::string Get(std::string_view path, std::string_view extra = "");
std::string Post(std::string_view path, std::string_view body, std::string_view extra = "");
std::string PostChunked(std::string_view path, std::string_view body, std::size_t chunk_bytes);

// Fails the test and returns null if it does not start.
std::unique_ptr<Server> MustStart(Handler handler, ServerOptions options = {});

// Answers "METHOD path body".
void Echo(const Request& request, Exchange& exchange);
Handler EchoHandler();

// A server whose handler gives the exchange of its first request to the test.
class HeldRequest {
 public:
  explicit HeldRequest(const ServerOptions& options = {});

  Server& server() { return *server_; }
  void StopServer() { server_.reset(); }
  std::shared_ptr<Exchange> Take();  // waits for it; null if none comes

 private:
  std::shared_ptr<Exchange> exchange_;
  Signal arrived_;
  std::unique_ptr<Server> server_;
};

// Whether `condition` becomes true.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::mutex mutex;
  std::condition_variable never;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::unique_lock lock(mutex);
    never.wait_for(lock, std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace syncline::http
