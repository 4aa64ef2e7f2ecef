#include "http/test_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/result_matchers.h"
#include "http/test_identity.h"

namespace syncline::http {
namespace {

bool WaitFor(int socket, short events, int milliseconds) {
  pollfd state = {.fd = socket, .events = events, .revents = 0};
  return ::poll(&state, 1, milliseconds) > 0;
}

int Connect(const sockaddr* address, socklen_t bytes) {
  const int socket = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  if (::connect(socket, address, bytes) != 0) {
    ::close(socket);
    return -1;
  }
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text, int base) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void Signal::Set() {
  const std::scoped_lock lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

bool Signal::Wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [&] { return set_; });
}

std::string ClientReply::Header(std::string_view name) const {
  const auto found =
      std::ranges::find_if(headers, [&](const auto& header) { return header.first == name; });
  return found == headers.end() ? std::string() : found->second;
}

bool TestsUseTls() { return ::getenv("SYNCLINE_TEST_TLS") != nullptr; }

// Trusts the authority of TestIdentity::Shared() and expects its address.
struct TestClient::Tls {
  explicit Tls(int socket) : context(SSL_CTX_new(TLS_client_method())) {
    const std::string authority = TestIdentity::Shared().authority_file();
    SSL_CTX_load_verify_file(context, authority.c_str());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ssl = SSL_new(context);
    SSL_set_fd(ssl, socket);
    SSL_set_connect_state(ssl);
    ::fcntl(socket, F_SETFL, O_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);  // the library writes without MSG_NOSIGNAL
  }
  ~Tls() {
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Of a call that moved nothing: as the system calls say it, and what it lacked.
  ssize_t Failed(std::atomic<short>& wanted) const {
    const int error = SSL_get_error(ssl, 0);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    const bool waits = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
    wanted = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    errno = waits ? EAGAIN : ECONNRESET;
    return -1;
  }

  SSL_CTX* context;
  SSL* ssl;
  std::mutex mutex;  // one thread may send while another one reads
  std::atomic<short> send_lacks = POLLOUT;
  std::atomic<short> read_lacks = POLLIN;
};

TestClient::TestClient(std::uint16_t port, const char* address, Transport transport) {
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (::inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
    socket_ = Connect(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  } else if (::inet_pton(AF_INET6, address, &v6.sin6_addr) == 1) {
    socket_ = Connect(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  }
  if (connected() && transport == Transport::kTls) tls_ = std::make_unique<Tls>(socket_);
}

TestClient::TestClient(TestClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      tls_(std::move(other.tls_)),
      buffer_(std::move(other.buffer_)),
      used_(other.used_),
      end_(other.end_) {}

TestClient::~TestClient() { Close(); }

void TestClient::Close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void TestClient::Reset() {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

void TestClient::ShutdownWrite() {
  if (tls_) SSL_shutdown(tls_->ssl);
  ::shutdown(socket_, SHUT_WR);
}

ssize_t TestClient::SendSome(std::string_view bytes) {
  if (!tls_) return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  std::size_t sent = 0;
  const std::scoped_lock lock(tls_->mutex);
  ERR_clear_error();
  const bool done = SSL_write_ex(tls_->ssl, bytes.data(), bytes.size(), &sent) == 1;
  return done ? static_cast<ssize_t>(sent) : tls_->Failed(tls_->send_lacks);
}

ssize_t TestClient::ReadSome(std::span<char> to) {
  if (!tls_) return ::recv(socket_, to.data(), to.size(), MSG_DONTWAIT);
  std::size_t got = 0;
  const std::scoped_lock lock(tls_->mutex);
  ERR_clear_error();
  const bool done = SSL_read_ex(tls_->ssl, to.data(), to.size(), &got) == 1;
  return done ? static_cast<ssize_t>(got) : tls_->Failed(tls_->read_lacks);
}

bool TestClient::WaitToSend(int milliseconds) const {
  return WaitFor(socket_, tls_ ? tls_->send_lacks.load() : short{POLLOUT}, milliseconds);
}

bool TestClient::WaitToRead(int milliseconds) const {
  return WaitFor(socket_, tls_ ? tls_->read_lacks.load() : short{POLLIN}, milliseconds);
}

bool TestClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = SendSome(bytes);
    if (sent < 0 && errno == EAGAIN && !WaitToSend(kPatienceMs)) return false;
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::size_t TestClient::SendUntilBlocked(std::string_view bytes) {
  std::size_t total = 0;
  while (total < bytes.size()) {
    const ssize_t sent = SendSome(bytes.substr(total));
    if (sent > 0) total += static_cast<std::size_t>(sent);
    if (sent < 0 && (errno != EAGAIN || !WaitToSend(500))) break;
  }
  return total;
}

bool TestClient::HasData() { return used_ < buffer_.size() || Fill(0) || end_ != End::kNothing; }

bool TestClient::Fill(int milliseconds) {
  if (end_ != End::kNothing) return false;  // an error is reported by the kernel only once
  buffer_.erase(0, std::exchange(used_, 0));
  std::array<char, 1 << 16> bytes;
  ssize_t got = 0;
  while ((got = ReadSome(bytes)) < 0 && errno == EAGAIN) {
    if (!WaitToRead(milliseconds)) return false;
  }
  if (got > 0) buffer_.append(bytes.data(), static_cast<std::size_t>(got));
  if (got > 0) return true;
  end_ = got == 0 ? End::kClosed : End::kReset;
  return false;
}

TestClient::End TestClient::ReadEnd() {
  if (used_ < buffer_.size() || Fill()) return End::kData;
  return end_;
}

TestClient::End TestClient::SkipToEnd() {
  do {
    used_ = buffer_.size();
  } while (Fill());
  return end_;
}

std::optional<std::string> TestClient::ReadLine() {
  while (true) {
    const std::size_t end = buffer_.find("\r\n", used_);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(used_, end - used_);
      used_ = end + 2;
      return line;
    }
    if (!Fill()) return std::nullopt;
  }
}

std::optional<std::string> TestClient::ReadBytes(std::size_t bytes) {
  while (buffer_.size() - used_ < bytes) {
    if (!Fill()) return std::nullopt;
  }
  std::string read = buffer_.substr(used_, bytes);
  used_ += bytes;
  return read;
}

std::optional<ClientReply> TestClient::ReadHead() {
  std::optional<std::string> line = ReadLine();
  if (!line || !line->starts_with("HTTP/1.1 ")) return std::nullopt;
  const auto status = ParseNumber<int>(std::string_view(*line).substr(9, 3), 10);
  if (!status) return std::nullopt;
  ClientReply reply{.status = *status};
  while ((line = ReadLine())) {
    if (line->empty()) return reply;
    const std::size_t colon = line->find(": ");
    if (colon == std::string::npos) return std::nullopt;
    std::string name = line->substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    reply.headers.emplace_back(std::move(name), line->substr(colon + 2));
  }
  return std::nullopt;
}

std::optional<std::string> TestClient::ReadChunk() {
  const std::optional<std::string> line = ReadLine();
  const auto bytes = line ? ParseNumber<std::size_t>(*line, 16) : std::nullopt;
  if (!bytes) return std::nullopt;
  std::optional<std::string> data = ReadBytes(*bytes);
  const std::optional<std::string> end = ReadLine();
  return data && end && end->empty() ? data : std::nullopt;
}

std::optional<ClientReply> TestClient::ReadReply(bool head_only) {
  std::optional<ClientReply> reply = ReadHead();
  if (!reply || head_only || reply->status == 100) return reply;
  if (reply->Header("transfer-encoding") == "chunked") {
    while (true) {
      const std::optional<std::string> chunk = ReadChunk();
      if (!chunk) return std::nullopt;
      if (chunk->empty()) return reply;
      reply->body += *chunk;
    }
  }
  if (const std::string length = reply->Header("content-length"); !length.empty()) {
    const auto bytes = ParseNumber<std::size_t>(length, 10);
    std::optional<std::string> body = bytes ? ReadBytes(*bytes) : std::nullopt;
    if (!body) return std::nullopt;
    reply->body = *std::move(body);
    return reply;
  }
  if (reply->Header("connection") != "close") return reply;
  while (Fill()) {
  }
  if (end_ != End::kClosed) return std::nullopt;
  reply->body = buffer_.substr(std::exchange(used_, buffer_.size()));
  return reply;
}

std::string Get(std::string_view path, std::string_view extra) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, extra);
}

std::string Post(std::string_view path, std::string_view body, std::string_view extra) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{}\r\n{}", path,
                     body.size(), extra, body);
}

std::string PostChunked(std::string_view path, std::string_view body, std::size_t chunk_bytes) {
  std::string text =
      fmt::format("POST {} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n", path);
  while (!body.empty()) {
    const std::string_view chunk = body.substr(0, chunk_bytes);
    text += fmt::format("{:x}\r\n", chunk.size());
    text += chunk;
    text += "\r\n";
    body.remove_prefix(chunk.size());
  }
  return text + "0\r\n\r\n";
}

std::unique_ptr<Server> MustStart(Handler handler, ServerOptions options) {
  if (TestsUseTls() && !options.tls) options.tls = TestIdentity::Shared().server();
  auto server = Server::Start(options, std::move(handler));
  if (!server) {
    ADD_FAILURE() << base::ErrorText(server);
    return nullptr;
  }
  return *std::move(server);
}

HeldRequest::HeldRequest(const ServerOptions& options)
    : server_(MustStart(
          [this](const auto&, const auto& exchange) {
            exchange_ = exchange;
            arrived_.Set();
          },
          options)) {}

std::shared_ptr<Exchange> HeldRequest::Take() {
  return arrived_.Wait() ? std::move(exchange_) : nullptr;
}

void Echo(const Request& request, Exchange& exchange) {
  exchange.Send({.content_type = "text/plain",
                 .body = fmt::format("{} {} {}", request.method, request.path, request.body)});
}

Handler EchoHandler() {
  return [](const auto& request, const auto& exchange) { Echo(*request, *exchange); };
}

}  // namespace syncline::http
