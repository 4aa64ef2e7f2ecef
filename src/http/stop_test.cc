// Server::Stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

constexpr std::chrono::hours kLong(1);

// Stop on a thread of its own, so that a Stop that hangs fails the test.
class Stopping {
 public:
  Stopping(Server& server, std::chrono::milliseconds drain)
      : thread_([this, &server, drain] {
          server.Stop(drain);
          done_.Set();
        }) {}
  ~Stopping() { thread_.join(); }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;
  bool Done() { return done_.Wait(); }
  bool DoneNow() { return done_.Wait(std::chrono::milliseconds(0)); }

 private:
  Signal done_;
  std::thread thread_;
};

bool Refuses(std::uint16_t port) {
  return Eventually([&] { return !TestClient(port).connected(); });
}

TEST(Stop, ConnectionsWithoutARunningReplyAreClosedAtOnce) {
  const auto server = MustStart(EchoHandler(), {.threads = 2});
  TestClient fresh(server->port());
  TestClient idle(server->port());
  ASSERT_TRUE(idle.Send(Get("/")));
  ASSERT_TRUE(idle.ReadReply());
  TestClient part(server->port());
  ASSERT_TRUE(part.Send("GET / HT"));
  ASSERT_TRUE(Eventually([&] { return server->connections() == 3; }));
  Stopping stopping(*server, kLong);
  // Before its handshake TLS has no word for an end.
  EXPECT_EQ(fresh.ReadEnd(), TestsUseTls() ? TestClient::End::kReset : TestClient::End::kClosed);
  EXPECT_EQ(idle.ReadEnd(), TestClient::End::kClosed);
  EXPECT_NE(part.ReadEnd(), TestClient::End::kData);
  EXPECT_TRUE(stopping.Done());
  EXPECT_EQ(server->connections(), 0);
}

TEST(Stop, ARunningReplyIsFinishedAndThenTheConnectionCloses) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/") + Get("/pipelined")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  Stopping stopping(held.server(), kLong);
  EXPECT_TRUE(Refuses(held.server().port()));
  EXPECT_FALSE(stopping.DoneNow());
  exchange->Send({.body = std::string(10 << 20, 'x')});
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body.size(), 10 << 20);
  EXPECT_EQ(reply->Header("connection"), "close");
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kClosed);  // the pipelined request is not handled
  EXPECT_TRUE(stopping.Done());
}

TEST(Stop, ARunningStreamIsFinished) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/plain");
  ASSERT_TRUE(client.ReadHead());
  Stopping stopping(held.server(), kLong);
  EXPECT_TRUE(Refuses(held.server().port()));
  exchange->Write("a");
  EXPECT_EQ(client.ReadChunk(), "a");
  EXPECT_FALSE(stopping.DoneNow());
  exchange->End();
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_TRUE(stopping.Done());
}

TEST(Stop, WhatRunsLongerThanTheDrainIsCutOff) {
  for (const bool streams : {false, true}) {
    HeldRequest held;
    TestClient client(held.server().port());
    ASSERT_TRUE(client.Send(Get("/")));
    const auto exchange = held.Take();
    ASSERT_NE(exchange, nullptr);
    if (streams) exchange->BeginStream(200, "text/plain");
    std::atomic<int> calls = 0;
    exchange->OnDisconnect([&] { ++calls; });
    held.server().Stop(std::chrono::milliseconds(20));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(held.server().connections(), 0);
    EXPECT_FALSE(client.ReadReply());
    // Nothing happens any more.
    exchange->OnDisconnect([&] { ++calls; });
    exchange->Send({});
    exchange->Write("x");
    exchange->End();
    held.server().Stop(kLong);
    held.StopServer();
    EXPECT_EQ(calls, 1);
  }
}

TEST(Stop, AnExchangeMayOutliveItsServer) {
  std::vector<std::shared_ptr<Exchange>> kept;
  for (const bool streams : {false, true}) {
    HeldRequest held;
    TestClient client(held.server().port());
    ASSERT_TRUE(client.Send(Get("/")));
    kept.push_back(held.Take());
    ASSERT_NE(kept.back(), nullptr);
    if (streams) kept.back()->BeginStream(200, "text/plain");
    held.StopServer();
    kept.back()->OnDisconnect([] { FAIL() << "after the server"; });
  }
  kept[0]->Send({});
  kept[1]->Write("x");
  kept[1]->End();
}

// Connections come, send and go on all sides while the server stops.
TEST(Stop, MayComeAtAnyTime) {
  for (int round = 0; round < 30; ++round) {
    std::atomic<bool> stopped = false;
    std::atomic<int> handled_late = 0;
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::vector<std::shared_ptr<Exchange>> exchanges;
    auto server = MustStart(
        [&](const auto& request, const auto& exchange) {
          if (stopped) ++handled_late;
          exchange->OnDisconnect([&] {
            if (stopped) ++handled_late;
          });
          if (request->path == "/now") return Echo(*request, *exchange);
          const std::scoped_lock lock(mutex);
          exchanges.push_back(exchange);
        },
        {.threads = 3});
    const std::uint16_t port = server->port();
    std::atomic<int> started = 0;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        while (!stopped) {
          TestClient client(port);
          if (!client.connected()) break;
          client.Send(Get(t % 2 == 0 ? "/now" : "/later"));
          ++started;
          if (t % 2 == 0) client.ReadReply();
          if (t == 1) {
            const std::scoped_lock lock(mutex);
            for (const auto& exchange : exchanges) exchange->Send({.body = "later"});
            exchanges.clear();
          }
        }
      });
    }
    EXPECT_TRUE(Eventually([&] { return started > round; }));
    server->Stop(std::chrono::milliseconds(round % 3));
    stopped = true;
    EXPECT_EQ(server->connections(), 0);
    for (std::thread& thread : threads) thread.join();
    server.reset();
    EXPECT_EQ(handled_late, 0);
  }
}

}  // namespace
}  // namespace syncline::http
