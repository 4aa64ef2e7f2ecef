// Whatever a client sends, the server goes on: random bytes, and good requests with some bytes
// changed.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "http/server.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

Server& OneServer() {
  static const std::unique_ptr<Server> server =
      MustStart(EchoHandler(), {.max_header_bytes = 2000,
                                .max_body_bytes = 5000,
                                .header_timeout = std::chrono::milliseconds(50)});
  return *server;
}

// Sends the bytes in two pieces and leaves; another client is answered as ever.
bool Survives(const std::string& bytes, std::size_t first_piece, bool reset) {
  TestClient client(OneServer().port());
  const std::string_view view = bytes;
  client.Send(view.substr(0, first_piece));
  client.Send(view.substr(first_piece));
  TestClient good(OneServer().port());
  if (!good.Send(Post("/good", "body"))) return false;
  const auto reply = good.ReadReply();
  if (reset) client.Reset();
  return reply && reply->status == 200 && reply->body == "POST /good body";
}

RC_GTEST_PROP(Garbage, RandomBytes, (const std::string& bytes, bool reset)) {
  RC_ASSERT(Survives(bytes, *rc::gen::inRange<std::size_t>(0, bytes.size() + 1), reset));
}

RC_GTEST_PROP(Garbage, RandomWordsOfTheProtocol, (bool reset)) {
  const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "GET", "POST", " ", "/", "HTTP/1.1", "HTTP/1.0", "\r\n", "\r", "\n", ":", "Content-Length: ",
      "Transfer-Encoding: chunked", "Connection: ", "close", "Expect: 100-continue", "0", "5",
      "ffff", "%", "?", "a=b&", ";", "chunked", ",", std::string(1, '\0'), "\xff\xfe", "\r\n\r\n"));
  std::string bytes;
  for (const std::string& word : words) bytes += word;
  RC_ASSERT(Survives(bytes, *rc::gen::inRange<std::size_t>(0, bytes.size() + 1), reset));
}

RC_GTEST_PROP(Garbage, GoodRequestsWithBytesChanged, (bool chunked, bool reset)) {
  const auto body = *rc::gen::string<std::string>();
  std::string bytes = chunked ? PostChunked("/path?q=%41", body, 7) : Post("/path?q=%41", body);
  bytes += Get("/next", "Connection: keep-alive\r\n");
  const auto changes = *rc::gen::container<std::vector<std::pair<std::size_t, char>>>(
      rc::gen::pair(rc::gen::inRange<std::size_t>(0, bytes.size()), rc::gen::arbitrary<char>()));
  for (const auto& [at, byte] : changes) bytes[at] = byte;
  RC_ASSERT(Survives(bytes, *rc::gen::inRange<std::size_t>(0, bytes.size() + 1), reset));
}

}  // namespace
}  // namespace syncline::http
