// Requests and replies over real sockets.
#include "http/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/result_matchers.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Server, AnswersRequestsOnOneConnection) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send(Get(fmt::format("/{}", i))));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->Header("content-type"), "text/plain");
    EXPECT_EQ(reply->Header("connection"), "");
    EXPECT_THAT(reply->Header("date"), HasSubstr("GMT"));
    EXPECT_EQ(reply->body, fmt::format("GET /{} ", i));
  }
  EXPECT_EQ(server->connections(), 1);
}

TEST(Server, HandsOverTheWholeRequest) {
  Request seen;
  const auto server = MustStart([&](const auto& request, const auto& exchange) {
    seen = *request;
    exchange->Send({.status = 201, .body = "{}", .headers = {{"X-Reply", "yes"}}});
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Post("/p%2Fq?a=1&a=2", "body", "X-Test: v\r\n")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 201);
  EXPECT_EQ(reply->Header("content-type"), "application/json");
  EXPECT_EQ(reply->Header("x-reply"), "yes");
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/p/q");
  EXPECT_EQ(*seen.Query("a"), "1");
  EXPECT_EQ(*seen.Header("x-test"), "v");
  EXPECT_EQ(seen.body, "body");
  EXPECT_THAT(seen.peer, StartsWith("127.0.0.1:"));
}

TEST(Server, TakesARequestByteByByte) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  for (const std::string& request :
       {Post("/sized", "12345"), PostChunked("/chunked", "1234567", 3), Get("/none")}) {
    for (const char byte : request) ASSERT_TRUE(client.Send({&byte, 1}));
    ASSERT_TRUE(client.ReadReply());
  }
}

TEST(Server, PipelinedRequestsAreHandledOneAfterTheOther) {
  std::atomic<int> running = 0;
  std::atomic<bool> overlapped = false;
  std::vector<std::thread> threads;
  const auto server = MustStart([&](const auto& request, const auto& exchange) {
    if (++running > 1) overlapped = true;
    threads.emplace_back([&, request, exchange] {
      std::this_thread::yield();
      --running;
      Echo(*request, *exchange);
    });
  });
  TestClient client(server->port());
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += Post("/", std::to_string(i));
  ASSERT_TRUE(client.Send(requests));
  for (int i = 0; i < 50; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, fmt::format("POST / {}", i));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(overlapped);
}

TEST(Server, ManyPipelinedRequestsInPiecesOfAnySize) {
  const auto server = MustStart(EchoHandler());
  std::mt19937 random(1);
  std::string requests;
  for (int i = 0; i < 300; ++i) {
    const std::string body(random() % 3 == 0 ? random() % 40000 : random() % 20, 'b');
    requests += i % 2 == 0 ? Post("/", body) : PostChunked("/", body, 1 + random() % 9000);
  }
  TestClient client(server->port());
  std::thread sender([&] {
    std::string_view rest = requests;
    while (!rest.empty()) {
      const std::string_view piece = rest.substr(0, 1 + random() % 50000);
      EXPECT_TRUE(client.Send(piece));
      rest.remove_prefix(piece.size());
    }
  });
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(client.ReadReply()) << i;
  sender.join();
}

TEST(Server, ClosesWhenTheClientAsksForIt) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  // What follows is not handled, and its bytes do not turn the end into a reset.
  std::string requests = Get("/", "Connection: close\r\n");
  for (int i = 0; i < 20000; ++i) requests += Get("/second");
  ASSERT_TRUE(client.Send(requests));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->Header("connection"), "close");
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kClosed);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(Server, TalksToClientsOfHttp10) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  ASSERT_TRUE(client.Send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->Header("connection"), "keep-alive");
  ASSERT_TRUE(client.Send("GET /b HTTP/1.0\r\n\r\n"));
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "GET /b ");
  EXPECT_EQ(reply->Header("connection"), "close");
  EXPECT_EQ(client.ReadEnd(), TestClient::End::kClosed);
}

TEST(Server, HeadHasTheLengthAndNoBody) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  ASSERT_TRUE(client.Send("HEAD /a HTTP/1.1\r\n\r\n" + Get("/b")));
  const auto head = client.ReadReply(true);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->Header("content-length"), "8");
  const auto next = client.ReadReply();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->body, "GET /b ");
}

TEST(Server, ARepliesWithoutContentHasNoBody) {
  const auto server = MustStart([](const auto&, const auto& exchange) {
    exchange->Send({.status = 204, .body = "ignored"});
  });
  TestClient client(server->port());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.Send(Get("/")));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 204);
    EXPECT_EQ(reply->Header("content-length"), "");
  }
}

TEST(Server, AStatusOutsideOfHttpIsSentAs500) {
  const auto server = MustStart(
      [](const auto&, const auto& exchange) { exchange->Send({.status = 100, .body = "x"}); });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 500);
}

TEST(Server, InvitesTheBodyOfAClientThatWaits) {
  const auto server = MustStart(EchoHandler());
  TestClient client(server->port());
  const std::string request = Post("/", "body", "Expect: 100-continue\r\n");
  ASSERT_TRUE(client.Send(request.substr(0, request.size() - 4)));
  const auto interim = client.ReadReply();
  ASSERT_TRUE(interim);
  EXPECT_EQ(interim->status, 100);
  ASSERT_TRUE(client.Send("body"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "POST / body");
}

std::string RandomBytes(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::copy_n(reinterpret_cast<const char*>(&word), 8, text.data() + i);
  }
  return text;
}

TEST(Server, LargeBodiesArriveAndLeaveWhole) {
  const auto server = MustStart(
      [](const auto& request, const auto& exchange) { exchange->Send({.body = request->body}); });
  const std::string body = RandomBytes((64 << 20) + 12345);
  TestClient client(server->port());
  for (const std::string& request :
       {Post("/", body), PostChunked("/", body, 1 << 20), PostChunked("/", body, 10007)}) {
    std::thread sender([&] { EXPECT_TRUE(client.Send(request)); });
    const auto reply = client.ReadReply();
    sender.join();
    ASSERT_TRUE(reply);
    EXPECT_TRUE(reply->body == body);
  }
}

TEST(Server, RepliesMayComeFromAnyThread) {
  std::mutex mutex;
  std::vector<std::pair<std::shared_ptr<const Request>, std::shared_ptr<Exchange>>> waiting;
  const auto server = MustStart(
      [&](const auto& request, const auto& exchange) {
        const std::scoped_lock lock(mutex);
        waiting.emplace_back(request, exchange);
      },
      {.threads = 2});
  std::atomic<bool> done = false;
  std::vector<std::thread> workers;
  workers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      while (!done) {
        std::unique_lock lock(mutex);
        if (waiting.empty()) {
          lock.unlock();
          std::this_thread::yield();
          continue;
        }
        const auto [request, exchange] = std::move(waiting.back());
        waiting.pop_back();
        lock.unlock();
        Echo(*request, *exchange);
      }
    });
  }
  std::vector<TestClient> clients;
  clients.reserve(64);
  for (int i = 0; i < 64; ++i) clients.emplace_back(server->port());
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < clients.size(); ++i) {
      ASSERT_TRUE(clients[i].Send(Post("/", std::to_string(i))));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const auto reply = clients[i].ReadReply();
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->body, fmt::format("POST / {}", i));
    }
  }
  done = true;
  for (std::thread& worker : workers) worker.join();
}

TEST(Server, ADroppedExchangeAnswers500) {
  const auto server = MustStart([](const auto& request, const auto& exchange) {
    if (request->path == "/ok") Echo(*request, *exchange);
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/") + Get("/ok")));
  const auto dropped = client.ReadReply();
  ASSERT_TRUE(dropped);
  EXPECT_EQ(dropped->status, 500);
  EXPECT_EQ(dropped->body, R"({"error":{"message":"the request was dropped without a reply"}})");
  EXPECT_EQ(client.ReadReply()->status, 200);
}

TEST(Server, AHandlerThatThrowsAnswers500) {
  std::vector<std::shared_ptr<Exchange>> kept;
  const auto server = MustStart([&](const auto& request, const auto& exchange) {
    kept.push_back(exchange);  // so that it is not dropped
    if (request->path == "/exception") throw std::runtime_error("secret");
    if (request->path == "/int") throw 7;
    Echo(*request, *exchange);
  });
  TestClient client(server->port());
  ASSERT_TRUE(client.Send(Get("/exception") + Get("/int") + Get("/ok")));
  for (int i = 0; i < 2; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 500);
    EXPECT_EQ(reply->body, R"({"error":{"message":"internal error"}})");
  }
  EXPECT_EQ(client.ReadReply()->status, 200);
}

TEST(Server, OnlyTheFirstReplyCounts) {
  const auto server = MustStart([](const auto&, const auto& exchange) {
    exchange->Send({.body = "first"});
    exchange->Send({.body = "second"});
    exchange->BeginStream(200, "text/plain");
    exchange->Write("third");
    exchange->End();
  });
  TestClient client(server->port());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.Send(Get("/")));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, "first");
  }
}

TEST(Server, ListensOnIpv6) {
  const auto server = MustStart(
      [](const auto& request, const auto& exchange) { exchange->Send({.body = request->peer}); },
      {.address = "::"});
  TestClient v6(server->port(), "::1");
  ASSERT_TRUE(v6.connected());
  ASSERT_TRUE(v6.Send(Get("/")));
  EXPECT_THAT(v6.ReadReply()->body, StartsWith("[::1]:"));
  TestClient v4(server->port(), "127.0.0.1");
  ASSERT_TRUE(v4.connected());
  ASSERT_TRUE(v4.Send(Get("/")));
  EXPECT_THAT(v4.ReadReply()->body, StartsWith("127.0.0.1:"));
}

TEST(Server, SaysWhyItCannotStart) {
  const auto server = MustStart(EchoHandler());
  EXPECT_ERROR(Server::Start({.port = server->port()}, EchoHandler()), base::Code::kUnavailable,
               fmt::format("127.0.0.1 port {}", server->port()));
  EXPECT_ERROR(Server::Start({.address = "300.1.1.1"}, EchoHandler()), base::Code::kInvalidArgument,
               "300.1.1.1");
  EXPECT_ERROR(Server::Start({.address = "localhost"}, EchoHandler()), base::Code::kInvalidArgument,
               "localhost");
  EXPECT_ERROR(Server::Start({.address = "8.8.8.8"}, EchoHandler()), base::Code::kUnavailable,
               "8.8.8.8");
  EXPECT_ERROR(Server::Start({.threads = 0}, EchoHandler()), base::Code::kInvalidArgument,
               "thread");
  EXPECT_ERROR(Server::Start({}, nullptr), base::Code::kInvalidArgument, "handler");
}

}  // namespace
}  // namespace syncline::http
