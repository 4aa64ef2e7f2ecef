// Streamed replies.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

TEST(Stream, EveryWriteArrivesAtOnceAsOneChunk) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/event-stream");
  const auto head = client.ReadHead();  // before anything is written
  ASSERT_TRUE(head);
  EXPECT_EQ(head->Header("content-type"), "text/event-stream");
  EXPECT_EQ(head->Header("transfer-encoding"), "chunked");
  for (int i = 0; i < 100; ++i) {  // each one is there before the next is written
    const std::string chunk = fmt::format("data: {}\n\n", i);
    exchange->Write(chunk);
    exchange->Write("");  // would end the stream if it were sent
    ASSERT_EQ(client.ReadChunk(), chunk);
  }
  exchange->End();
  exchange->Write("late");
  EXPECT_EQ(client.ReadChunk(), "");
}

TEST(Stream, ABurstArrivesInOrder) {
  HeldRequest held;
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(202, "text/plain");
  std::vector<std::string> chunks;
  chunks.reserve(3000);
  for (int i = 0; i < 3000; ++i) {
    chunks.push_back(std::to_string(i) + std::string(i % 100 == 0 ? 100000 : 10, 'x'));
  }
  std::thread writer([&] {
    for (const std::string& chunk : chunks) exchange->Write(chunk);
    exchange->End();
  });
  EXPECT_EQ(client.ReadHead()->status, 202);
  for (const std::string& chunk : chunks) ASSERT_EQ(client.ReadChunk(), chunk);
  EXPECT_EQ(client.ReadChunk(), "");
  writer.join();
}

TEST(Stream, TheConnectionGoesOnAfterIt) {
  const auto server = MustStart([](const auto&, const auto& exchange) {
    exchange->BeginStream(200, "text/plain");
    exchange->Write("a");
    exchange->Write("b");
    exchange->End();
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/") + Get("/")));
  for (int i = 0; i < 2; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, "ab");
  }
}

TEST(Stream, ManyStreamsOfManyThreads) {
  constexpr int kStreams = 64;
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  const auto server = MustStart(
      [&](const auto&, const auto& exchange) {
        const std::scoped_lock lock(mutex);
        exchanges.push_back(exchange);
      },
      {.threads = 2});
  std::vector<TestClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server->port());
    ASSERT_TRUE(clients.back().Send(Get("/")));
  }
  ASSERT_TRUE(Eventually([&] {
    const std::scoped_lock lock(mutex);
    return exchanges.size() == kStreams;
  }));
  std::vector<std::thread> writers;
  writers.reserve(4);
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int i = t; i < kStreams; i += 4) exchanges[i]->BeginStream(200, "text/plain");
      for (int token = 0; token < 200; ++token) {
        for (int i = t; i < kStreams; i += 4) exchanges[i]->Write(fmt::format("{};", token));
      }
      for (int i = t; i < kStreams; i += 4) exchanges[i]->End();
    });
  }
  std::string expected;
  for (int token = 0; token < 200; ++token) expected += fmt::format("{};", token);
  for (TestClient& client : clients) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, expected);
  }
  for (std::thread& writer : writers) writer.join();
}

TEST(Stream, EndsWithTheConnectionForHttp10) {
  const auto server = MustStart([](const auto&, const auto& exchange) {
    exchange->BeginStream(200, "text/plain");
    exchange->Write("one ");
    exchange->Write("two");
    exchange->End();
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->Header("transfer-encoding"), "");
  EXPECT_EQ(reply->Header("connection"), "close");
  EXPECT_EQ(reply->body, "one two");
}

TEST(Stream, HeadHasNoChunks) {
  const auto server = MustStart([](const auto& request, const auto& exchange) {
    if (request->method == "GET") return Echo(*request, *exchange);
    exchange->BeginStream(200, "text/plain");
    exchange->Write("data");
    exchange->End();
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send("HEAD / HTTP/1.1\r\n\r\n" + Get("/")));
  ASSERT_TRUE(client.ReadReply(true));
  const auto next = client.ReadReply();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->body, "GET / ");
}

TEST(Stream, OneThatIsDroppedDoesNotLookWhole) {
  for (const char* version : {"1.1", "1.0"}) {
    HeldRequest held;
    TestClient client(held.server().port());
    ASSERT_TRUE(client.Send(fmt::format("GET / HTTP/{}\r\n\r\n", version)));
    auto exchange = held.Take();
    ASSERT_NE(exchange, nullptr);
    Signal called;
    exchange->OnDisconnect([&] { called.Set(); });
    exchange->BeginStream(200, "text/plain");
    ASSERT_TRUE(client.ReadHead());
    exchange.reset();
    EXPECT_EQ(client.ReadEnd(), TestClient::End::kReset);
    EXPECT_TRUE(Eventually([&] { return held.server().connections() == 0; }));
    EXPECT_FALSE(called.Wait(std::chrono::milliseconds(0))) << "the client did not go away";
  }
}

TEST(Stream, AClientThatDoesNotReadIsDisconnected) {
  constexpr std::size_t kLimit = 1 << 20;
  HeldRequest held({.max_unsent_bytes = kLimit});
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  Signal gone;
  exchange->OnDisconnect([&] { gone.Set(); });
  exchange->BeginStream(200, "text/plain");
  const std::string chunk(64 << 10, 'x');
  std::size_t written = 0;
  // The kernels take some megabytes; then what waits grows to the limit.
  while (!gone.Wait(std::chrono::milliseconds(1)) && written < (100 << 20)) {
    exchange->Write(chunk);
    written += chunk.size();
  }
  EXPECT_TRUE(gone.Wait());
  EXPECT_GT(written, kLimit);
  EXPECT_LT(written, std::size_t{100} << 20);
  EXPECT_EQ(held.server().connections(), 0);
  EXPECT_EQ(client.SkipToEnd(), TestClient::End::kReset);
}

TEST(Stream, AClientThatReadsMayTakeMoreThanTheLimit) {
  HeldRequest held({.max_unsent_bytes = 256 << 10});
  TestClient client(held.server().port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto exchange = held.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->BeginStream(200, "text/plain");
  ASSERT_TRUE(client.ReadHead());
  const std::string chunk(128 << 10, 'x');
  for (int i = 0; i < 100; ++i) {
    exchange->Write(chunk);
    ASSERT_EQ(client.ReadChunk(), chunk);
  }
  // One chunk may be larger than the limit, and so may a reply in one piece.
  exchange->Write(std::string(8 << 20, 'y'));
  EXPECT_EQ(client.ReadChunk()->size(), 8 << 20);
}

TEST(Stream, OnlyWhatWaitsCountsForTheLimit) {
  std::shared_ptr<Exchange> exchange;
  Signal arrived;
  const auto server = MustStart(
      [&](const auto& request, const auto& reply) {
        if (request->path == "/other") return Echo(*request, *reply);
        exchange = reply;
        arrived.Set();
      },
      {.max_unsent_bytes = 10000});
  TestClient client(server->port());
  TestClient other(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  ASSERT_TRUE(arrived.Wait());
  exchange->BeginStream(200, "text/plain");
  ASSERT_TRUE(client.ReadHead());
  for (int i = 0; i < 10; ++i) {
    exchange->Write(std::string(20000, 'x'));
    ASSERT_TRUE(client.ReadChunk());
    ASSERT_TRUE(other.Send(Get("/other")));  // by its reply the server knows what it has sent
    ASSERT_TRUE(other.ReadReply());
  }
}

TEST(Stream, AHandlerThatThrowsInsideItCutsIt) {
  const auto server = MustStart([](const auto&, const auto& exchange) {
    exchange->BeginStream(200, "text/plain");
    throw std::runtime_error("late");
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  EXPECT_FALSE(client.ReadReply());
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kReset);
}

}  // namespace
}  // namespace syncline::http
