// Clients that go away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

struct Leave {
  const char* name;
  void (*act)(TestClient& client);
};

class Disconnect : public testing::TestWithParam<Leave> {};

INSTANTIATE_TEST_SUITE_P(Ways, Disconnect,
                         testing::Values(Leave{"Close", [](TestClient& client) { client.Close(); }},
                                         Leave{"Reset", [](TestClient& client) { client.Reset(); }},
                                         Leave{"HalfClose",
                                               [](TestClient& client) { client.ShutdownWrite(); }}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(Disconnect, IsNoticedWhileTheHandlerWorks) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  std::atomic<int> calls = 0;
  Signal gone;
  exchange->OnDisconnect([&] { ++calls; });
  exchange->OnDisconnect([&] {
    ++calls;
    gone.Set();
  });
  GetParam().act(client);
  EXPECT_TRUE(gone.Wait());
  EXPECT_EQ(calls, 2);
  // Too late: nothing happens.
  exchange->Send({.body = "late"});
  exchange->BeginStream(200, "text/plain");
  exchange->Write("late");
  exchange->End();
  Signal late;
  exchange->OnDisconnect([&] { late.Set(); });
  EXPECT_TRUE(late.Wait());
  held.StopServer();
  EXPECT_EQ(calls, 2);
}

TEST_P(Disconnect, IsNoticedInAnIdleStream) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/plain");
  exchange->Write("first");
  ASSERT_TRUE(client.ReadHead());
  ASSERT_EQ(client.ReadChunk(), "first");
  Signal gone;
  exchange->OnDisconnect([&] { gone.Set(); });
  GetParam().act(client);
  EXPECT_TRUE(gone.Wait());
  exchange->Write("late");
  exchange->End();
  EXPECT_TRUE(Eventually([&] { return held.server().connections() == 0; }));
}

TEST_P(Disconnect, IsNoticedInABusyStream) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/plain");
  for (int i = 0; i < 100; ++i) exchange->Write(std::string(100000, 'x'));
  Signal gone;
  exchange->OnDisconnect([&] { gone.Set(); });
  ASSERT_TRUE(client.ReadHead());
  GetParam().act(client);
  EXPECT_TRUE(gone.Wait());
}

TEST_P(Disconnect, IsNoticedBehindPipelinedRequests) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  Signal gone;
  exchange->OnDisconnect([&] { gone.Set(); });
  // More than the server keeps, so that it reads no further; the kernel takes the rest, and the end.
  ASSERT_TRUE(client.Send(Post("/next", std::string(110000, 'x'))));
  GetParam().act(client);
  EXPECT_TRUE(gone.Wait());
}

TEST_P(Disconnect, InTheMiddleOfARequestEndsTheConnection) {
  const auto server = MustStart(EchoHandler());
  const std::string request = Post("/", std::string(100000, 'x'));
  for (const std::size_t sent : {std::size_t{0}, std::size_t{10}, std::size_t{90000}}) {
    TestClient client(server->port());
    ASSERT_TRUE(client.Send(request.substr(0, sent)));
    ASSERT_TRUE(Eventually([&] { return server->connections() == 1; }));
    GetParam().act(client);
    EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
  }
}

TEST(Disconnected, ACompleteReplyIsStillDelivered) {
  const std::string body(32 << 20, 'x');
  const auto server =
      MustStart([&](const auto&, const auto& exchange) { exchange->Send({.body = body}); });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  client.ShutdownWrite();
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->body == body);
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kClosed);
}

TEST(Disconnected, ACompleteReplyDropsItsCallbacks) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  auto token = std::make_shared<int>();
  std::atomic<bool> called = false;
  exchange->OnDisconnect([&, token] { called = true; });
  EXPECT_EQ(token.use_count(), 2);
  exchange->Send({.body = "x"});
  EXPECT_EQ(token.use_count(), 1);
  exchange->OnDisconnect([&, token] { called = true; });
  EXPECT_EQ(token.use_count(), 1);
  ASSERT_TRUE(client.ReadReply());
  client.Close();
  EXPECT_TRUE(Eventually([&] { return held.server().connections() == 0; }));
  held.StopServer();
  EXPECT_FALSE(called);
}

TEST(Disconnected, ACallbackThatHoldsItsExchangeIsFreed) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  const std::weak_ptr<Exchange> watched = exchange;
  exchange->OnDisconnect([exchange] { exchange->Send({}); });
  exchange->Send({.body = "x"});
  exchange.reset();
  EXPECT_TRUE(Eventually([&] { return watched.expired(); }));  // the handler has let go, too
  EXPECT_TRUE(client.ReadReply());
}

TEST(Disconnected, ACallbackThatThrowsHarmsNobody) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  Signal second;
  exchange->OnDisconnect([] { throw std::runtime_error("from a callback"); });
  exchange->OnDisconnect([] { throw 7; });
  exchange->OnDisconnect([&] { second.Set(); });
  client.Close();
  EXPECT_TRUE(second.Wait());
}

// The server is kept from noticing until it writes: in CLOSE_WAIT a reset makes that write fail
// with EPIPE, whose signal would end the process.
TEST(Disconnected, WritingToABrokenConnectionRaisesNoSignal) {
  Signal entered;
  Signal left;
  Signal gone;
  const auto server = MustStart([&](const auto&, const auto& exchange) {
    exchange->OnDisconnect([&, exchange] { gone.Set(); });
    entered.Set();
    ASSERT_TRUE(left.Wait());
    exchange->BeginStream(200, "text/plain");
    exchange->Write("x");
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  ASSERT_TRUE(entered.Wait());
  client.ShutdownWrite();
  client.Reset();
  left.Set();
  EXPECT_TRUE(gone.Wait());
}

}  // namespace
}  // namespace syncline::http
