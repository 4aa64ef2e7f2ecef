#include "objects/test_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/file.h"
#include "objects/url.h"

namespace syncline::objects {

std::string TestRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

bool TestRequest::Range(std::uint64_t& first, std::uint64_t& last) const {
  const std::string value = Header("range");
  if (!value.starts_with("bytes=")) return false;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data() + 6, end, first);
  return parsed.ec == std::errc() && parsed.ptr != end &&
         std::from_chars(parsed.ptr + 1, end, last).ec == std::errc();
}

bool TestConnection::Reply(int status, std::string_view headers, std::string_view body) {
  return Send(fmt::format("HTTP/1.1 {} Text\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(),
                          headers, body));
}

class TestServer::Connection final : public TestConnection {
 public:
  Connection(int socket, SSL_CTX* tls, const std::atomic<bool>& stopping,
             std::atomic<int>& drop_bodies)
      : socket_(socket), stopping_(stopping), drop_bodies_(drop_bodies) {
    if (tls == nullptr) return;
    ssl_ = SSL_new(tls);
    SSL_set_fd(ssl_, socket);
    broken_ = SSL_accept(ssl_) != 1;
  }
  ~Connection() override { SSL_free(ssl_); }

  bool Send(std::string_view bytes) override {
    while (!bytes.empty() && !broken_) {
      const ssize_t sent = ssl_ != nullptr
                               ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                               : send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        broken_ = true;
      } else {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      }
    }
    return !broken_;
  }

  void Stall() override {
    char byte = 0;
    while (!stopping_ && !broken_) {
      pollfd waiting = {.fd = socket_, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 1000) > 0 && recv(socket_, &byte, 1, MSG_PEEK) <= 0) broken_ = true;
    }
    broken_ = true;
  }

  void Close() override { broken_ = true; }
  bool broken() const { return broken_; }

  // Nothing if the connection ends before.
  std::optional<TestRequest> Read() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return std::nullopt;
    }
    TestRequest request;
    std::string_view head = std::string_view(buffer_).substr(0, end + 2);
    const std::string_view first = head.substr(0, head.find("\r\n"));
    request.method = first.substr(0, first.find(' '));
    const std::string_view rest = first.substr(request.method.size() + 1);
    request.target = rest.substr(0, rest.find(' '));
    head.remove_prefix(first.size() + 2);
    while (!head.empty()) {
      const std::string_view line = head.substr(0, head.find("\r\n"));
      head.remove_prefix(line.size() + 2);
      const std::size_t colon = line.find(": ");
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      });
      request.headers[name] = colon == std::string_view::npos ? "" : line.substr(colon + 2);
    }
    buffer_.erase(0, end + 4);
    std::size_t size = 0;
    const std::string length = request.Header("content-length");
    std::from_chars(length.data(), length.data() + length.size(), size);
    if (size > 0 && drop_bodies_ > 0) {
      --drop_bodies_;
      return std::nullopt;
    }
    while (buffer_.size() < size) {
      if (!Fill()) return std::nullopt;
    }
    request.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return request;
  }

 private:
  bool Fill() {
    char bytes[16384];
    const ssize_t got = broken_           ? 0
                        : ssl_ != nullptr ? SSL_read(ssl_, bytes, sizeof(bytes))
                                          : recv(socket_, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }

  int socket_;
  const std::atomic<bool>& stopping_;
  std::atomic<int>& drop_bodies_;
  SSL* ssl_ = nullptr;
  bool broken_ = false;
  std::string buffer_;
};

TestServer::TestServer(TestHandler handler, const TestCertificate* certificate)
    : handler_(std::move(handler)), certificate_(certificate) {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const char* proxy :
         {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
      unsetenv(proxy);
    }
  });
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (bind(listener_, generic, size) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    abort();  // no loopback: no test can run
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TestServer::~TestServer() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  std::vector<std::thread> threads;
  {
    const std::scoped_lock lock(mutex_);
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

std::string TestServer::url() const {
  return fmt::format("{}://127.0.0.1:{}", certificate_ == nullptr ? "http" : "https", port_);
}

std::vector<TestRequest> TestServer::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

std::size_t TestServer::connections() const {
  const std::scoped_lock lock(mutex_);
  return connections_;
}

void TestServer::Accept() {
  while (!stopping_) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    const std::scoped_lock lock(mutex_);
    ++connections_;
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void TestServer::Serve(int socket) {
  // OpenSSL writes without MSG_NOSIGNAL. The client under test must not need this.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  {
    Connection connection(socket, certificate_ == nullptr ? nullptr : certificate_->context(),
                          stopping_, drop_bodies_);
    while (!connection.broken()) {
      const std::optional<TestRequest> request = connection.Read();
      if (!request) break;
      {
        const std::scoped_lock lock(mutex_);
        requests_.push_back(*request);
      }
      handler_(*request, connection);
    }
  }
  const std::scoped_lock lock(mutex_);
  std::erase(sockets_, socket);
  close(socket);
}

TestHandler ServeDirectory(std::string directory) {
  return
      [directory = std::move(directory)](const TestRequest& request, TestConnection& connection) {
        base::FileSystem& files = base::FileSystem::Posix();
        const auto path = PercentDecode(request.target.substr(1));
        const auto text = !path || !base::IsInsidePath(*path)
                              ? base::Result<std::string>(base::Fail(base::Code::kNotFound, ""))
                              : base::ReadText(files, base::JoinPath(directory, *path), 1ULL << 32);
        if (!text) {
          connection.Reply(404, "", request.method == "HEAD" ? "" : "no such file");
          return;
        }
        const std::string tag = fmt::format("\"{:x}\"", std::hash<std::string>()(*text));
        if (!request.Header("if-match").empty() && request.Header("if-match") != tag) {
          connection.Reply(412, "", "");
          return;
        }
        std::string headers = fmt::format("ETag: {}\r\n", tag);
        std::uint64_t first = 0;
        std::uint64_t last = 0;
        if (request.method == "HEAD") {
          connection.Send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n",
                                      text->size(), headers));
        } else if (!request.Range(first, last)) {
          connection.Reply(200, headers, *text);
        } else if (first >= text->size()) {
          connection.Reply(416, fmt::format("Content-Range: bytes */{}\r\n", text->size()), "");
        } else {
          last = std::min<std::uint64_t>(last, text->size() - 1);
          headers += fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, last, text->size());
          connection.Reply(206, headers, std::string_view(*text).substr(first, last - first + 1));
        }
      };
}

}  // namespace syncline::objects
