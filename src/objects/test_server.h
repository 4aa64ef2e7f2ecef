// For tests: an HTTP server over plain sockets that does exactly what a test says, right or wrong,
// and one behaviour that is right: a directory with ranges.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "objects/test_certificate.h"

namespace syncline::objects {

struct TestRequest {
  std::string method;
  std::string target;                          // as sent
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string Header(const std::string& name) const;  // empty: none
  // Of "bytes=100-199"; false if there is none.
  bool Range(std::uint64_t& first, std::uint64_t& last) const;
};

// One connection, given to a handler for one request at a time.
class TestConnection {
 public:
  virtual ~TestConnection() = default;
  // All bytes as they are; false: the client has gone.
  virtual bool Send(std::string_view bytes) = 0;
  // Does nothing until the client goes away or the server stops.
  virtual void Stall() = 0;
  // The connection ends when the handler returns.
  virtual void Close() = 0;

  // A whole reply. headers: "A: b\r\n".
  bool Reply(int status, std::string_view headers, std::string_view body);
};

using TestHandler = std::function<void(const TestRequest&, TestConnection&)>;

// One thread for each connection; the handler is called from them. Stops when it is destroyed.
class TestServer {
 public:
  // certificate: null: plain HTTP. It must outlive the server.
  explicit TestServer(TestHandler handler, const TestCertificate* certificate = nullptr);
  ~TestServer();
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:4711"
  std::uint16_t port() const { return port_; }
  std::vector<TestRequest> requests() const;  // so far, in the order of their ends
  std::size_t connections() const;            // accepted so far
  // So many requests with a body from now on lose their connection before the body is read.
  void DropBodies(int count) { drop_bodies_ = count; }

 private:
  class Connection;
  void Accept();
  void Serve(int socket);

  TestHandler handler_;
  const TestCertificate* certificate_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> drop_bodies_ = 0;
  mutable std::mutex mutex_;
  std::vector<TestRequest> requests_;  // guarded by mutex_
  std::vector<int> sockets_;           // guarded by mutex_; open ones
  std::vector<std::thread> threads_;   // guarded by mutex_
  std::size_t connections_ = 0;        // guarded by mutex_
  std::thread acceptor_;
};

// Serves the files below `directory` as they are at the time: GET and HEAD, Range, If-Match, and
// an ETag that is a hash of the content.
TestHandler ServeDirectory(std::string directory);

}  // namespace syncline::objects
