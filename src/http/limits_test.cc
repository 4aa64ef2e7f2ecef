// Limits of size, time and number.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// The server refuses what `client` has sent, so that the client reads the reply, and closes.
void ExpectRefusal(TestClient& client, int status, std::string_view part) {
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, status);
  EXPECT_EQ(reply->Header("connection"), "close");
  EXPECT_THAT(reply->body, StartsWith(R"({"error":{"message":")"));
  EXPECT_THAT(reply->body, HasSubstr(part));
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kClosed);
}

TEST(Limits, RefusesWhatIsTooLargeOrMalformed) {
  const auto server = MustStart(EchoHandler(), {.max_header_bytes = 1000, .max_body_bytes = 5000});
  const auto refuses = [&](const std::string& request, int status, std::string_view part) {
    SCOPED_TRACE(request.substr(0, 100));
    TestClient client(server->port());
    ASSERT_TRUE(client.Send(request));
    ExpectRefusal(client, status, part);
  };
  refuses(Get("/", fmt::format("A: {:a>1000}\r\n", "")), 431, "1000 bytes");
  refuses(Get(fmt::format("/{:a>2000}", "")), 431, "1000 bytes");
  refuses(Post("/", std::string(5001, 'b')), 413, "5001 bytes");
  refuses(PostChunked("/", std::string(5001, 'b'), 100), 413, "5000 bytes");
  refuses("nonsense\r\n\r\n", 400, "malformed");
  refuses("GET /\xff%f\xff HTTP/1.1\r\n\r\n", 400, "percent");
  refuses("POST / HTTP/1.1\r\nTransfer-Encoding: br\r\n\r\n", 501, "br");
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Post("/", std::string(5000, 'b'))));
  EXPECT_EQ(client.ReadReply()->status, 200);
}

// The reply must survive that the server reads no more than it wants to.
TEST(Limits, AClientThatSendsOnStillReadsTheRefusal) {
  const auto server = MustStart(EchoHandler(), {.max_body_bytes = 1000});
  TestClient client(server->port());
  EXPECT_TRUE(client.Send(Post("/", std::string(30 << 20, 'b'))));
  ExpectRefusal(client, 413, "1000 bytes");
}

TEST(Limits, ARefusalAnswersTheExpectationOfAClient) {
  const auto server = MustStart(EchoHandler(), {.max_body_bytes = 1000});
  TestClient client(server->port());
  ASSERT_TRUE(
      client.Send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9999\r\n\r\n"));
  ExpectRefusal(client, 413, "9999");
}

TEST(Limits, AnOverdueRequestIsRefused) {
  const auto server = MustStart(EchoHandler(), {.header_timeout = milliseconds(100)});
  for (const char* part :
       {"G", "GET / HTTP/1.1\r\nHost:", "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n12"}) {
    TestClient client(server->port());
    ASSERT_TRUE(client.Send(part));
    ExpectRefusal(client, 408, "in time");
  }
  TestClient client(server->port());
  EXPECT_TRUE(Eventually([&] {  // bytes that trickle in give no more time
    client.Send("x");
    return client.HasData();
  }));
  ExpectRefusal(client, 408, "in time");
}

TEST(Limits, ALongBodyThatComesSlowlyIsNotOverdue) {
  const auto server = MustStart(EchoHandler(), {.header_timeout = milliseconds(1000)});
  TestClient client(server->port());
  const auto until = std::chrono::steady_clock::now() + milliseconds(1800);
  std::size_t sent = 0;
  ASSERT_TRUE(client.Send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"));
  for (; std::chrono::steady_clock::now() < until; ++sent) {
    ASSERT_TRUE(client.Send("1\r\nx\r\n"));
    usleep(1000);
  }
  ASSERT_TRUE(client.Send("0\r\n\r\n"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "POST / " + std::string(sent, 'x'));
}

TEST(Limits, AnIdleConnectionIsClosed) {
  const auto server = MustStart(EchoHandler(), {.idle_timeout = milliseconds(100)});
  TestClient fresh(server->port());
  EXPECT_EQ(fresh.ReadEnd(), TestClient::End::kClosed);
  TestClient used(server->port());
  ASSERT_TRUE(used.Send(Get("/") + "\r\n"));  // an empty line begins no request
  ASSERT_TRUE(used.ReadReply());
  EXPECT_EQ(used.ReadEnd(), TestClient::End::kClosed);
}

TEST(Limits, AWaitingRequestIsNotIdle) {
  HeldRequest held({.header_timeout = milliseconds(20), .idle_timeout = milliseconds(20)});
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  // Another connection times out several times meanwhile.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(TestClient(held.server().port()).ReadEnd(), TestClient::End::kClosed);
  }
  exchange->BeginStream(200, "text/plain");
  ASSERT_TRUE(client.ReadHead());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(TestClient(held.server().port()).ReadEnd(), TestClient::End::kClosed);
  }
  exchange->Write("x");
  EXPECT_EQ(client.ReadChunk(), "x");
}

TEST(Limits, AStreamThatWasBusyMayRest) {
  HeldRequest held({.idle_timeout = milliseconds(300)});
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/plain");
  exchange->Write(std::string(32 << 20, 'x'));  // more than the kernels take
  ASSERT_TRUE(client.ReadHead());
  ASSERT_EQ(client.ReadChunk()->size(), 32 << 20);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TestClient(held.server().port()).ReadEnd(), TestClient::End::kClosed);
  }
  exchange->Write("y");
  EXPECT_EQ(client.ReadChunk(), "y");
}

TEST(Limits, AClientThatTakesNothingOfItsReplyIsDisconnected) {
  Signal answered;
  const auto server = MustStart(
      [&](const auto&, const auto& exchange) {
        exchange->Send({.body = std::string(64 << 20, 'x')});
        answered.Set();
      },
      {.idle_timeout = milliseconds(200)});
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  ASSERT_TRUE(answered.Wait());
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
  EXPECT_EQ(client.SkipToEnd(), TestClient::End::kReset);
}

TEST(Limits, MoreConnectionsThanAllowedAreClosed) {
  const auto server = MustStart(EchoHandler(), {.max_connections = 2});
  std::vector<TestClient> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(server->port());
    ASSERT_TRUE(clients.back().Send(Get("/")));
    ASSERT_TRUE(clients.back().ReadReply());
  }
  TestClient third(server->port());
  EXPECT_NE(third.ReadEnd(), TestClient::End::kData);
  clients.pop_back();
  ASSERT_TRUE(Eventually([&] { return server->connections() == 1; }));
  TestClient fourth(server->port());
  ASSERT_TRUE(fourth.Send(Get("/")));
  EXPECT_TRUE(fourth.ReadReply());
}

TEST(Limits, WhatIsKeptOfPipelinedRequestsIsBounded) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  // The kernels take some megabytes.
  const std::string flood(100 << 20, 'x');
  EXPECT_LT(client.SendUntilBlocked(flood), flood.size());
  exchange->Send({.body = "x"});  // the client is not taken for gone
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "x");
}

std::size_t ThreadsOfThisProcess() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "Threads:") continue;
    std::size_t threads = 0;
    status >> threads;
    return threads;
  }
  return 0;
}

// In use, by the allocator's own account (sanitizers replace it by one that says 0).
std::size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Raises the limit of open files as far as it goes; returns how many connections may be tested.
std::size_t RaiseFileLimit(std::size_t wanted) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return std::min<std::size_t>(wanted, (limit.rlim_max - 100) / 2);
}

TEST(Limits, AThousandConnectionsCostNoThreadAndLittleMemory) {
  if (TestsUseTls()) GTEST_SKIP() << "the clients' side of TLS costs more than all else";
  const std::size_t count = RaiseFileLimit(1000);
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> waiting;
  const auto server = MustStart([&](const auto& request, const auto& exchange) {
    if (request->path == "/now") return exchange->Send({.body = "x"});
    const std::scoped_lock lock(mutex);
    waiting.push_back(exchange);
  });
  std::vector<TestClient> clients;
  clients.reserve(count);
  waiting.reserve(count);
  const std::size_t threads = ThreadsOfThisProcess();
  ASSERT_GT(threads, 1);
  const std::size_t before = AllocatedBytes();
  const std::string request =
      Post("/now", std::string(30000, 'b'), fmt::format("A: {:a>20000}\r\n", ""));
  for (std::size_t i = 0; i < count; ++i) {
    clients.emplace_back(server->port());
    ASSERT_TRUE(clients.back().Send(request));
    ASSERT_TRUE(clients.back().ReadReply());
  }
  EXPECT_EQ(server->connections(), count);
  EXPECT_EQ(ThreadsOfThisProcess(), threads);
  // The few bytes that the test's clients keep are in it.
  EXPECT_LT(AllocatedBytes() - before, count * 4096);

  for (TestClient& client : clients) ASSERT_TRUE(client.Send(Get("/wait")));
  ASSERT_TRUE(Eventually([&] {
    const std::scoped_lock lock(mutex);
    return waiting.size() == count;
  }));
  EXPECT_EQ(ThreadsOfThisProcess(), threads);
  for (const auto& exchange : waiting) exchange->Send({.body = "x"});
  for (TestClient& client : clients) ASSERT_TRUE(client.ReadReply());
}

// Uses up all file descriptors but `left`, until it is destroyed.
class Scarcity {
 public:
  explicit Scarcity(std::size_t left) {
    getrlimit(RLIMIT_NOFILE, &limit_);
    const int highest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const rlimit low = {.rlim_cur = static_cast<rlim_t>(highest) + 50, .rlim_max = limit_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    for (int copy = highest; copy >= 0; copy = ::dup(highest)) taken_.push_back(copy);
    for (; left > 0; --left) GiveOneBack();
  }
  ~Scarcity() {
    while (!taken_.empty()) GiveOneBack();
    setrlimit(RLIMIT_NOFILE, &limit_);
  }
  Scarcity(const Scarcity&) = delete;
  Scarcity& operator=(const Scarcity&) = delete;

 private:
  void GiveOneBack() {
    ::close(taken_.back());
    taken_.pop_back();
  }
  rlimit limit_ = {};
  std::vector<int> taken_;
};

TEST(Limits, GoesOnAfterItRanOutOfFileDescriptors) {
  if (TestsUseTls()) GTEST_SKIP() << "its client sends before it is accepted";
  const auto server = MustStart(EchoHandler());
  std::unique_ptr<TestClient> waits;
  {
    const Scarcity scarcity(1);
    waits = std::make_unique<TestClient>(server->port());
    ASSERT_TRUE(waits->connected());  // by the kernel; the server has no descriptor for it
    ASSERT_TRUE(waits->Send(Get("/")));
    usleep(100000);
    EXPECT_EQ(server->connections(), 0);
  }
  EXPECT_TRUE(waits->ReadReply());
}

}  // namespace
}  // namespace syncline::http
