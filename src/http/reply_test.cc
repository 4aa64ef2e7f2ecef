// What writes replies without a socket: heads and the queue of bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result_matchers.h"
#include "http/reply_head.h"
#include "http/write_queue.h"

namespace syncline::http {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Headers = std::vector<std::pair<std::string, std::string>>;

TEST(ReplyHead, SaysHowTheBodyIsFramed) {
  EXPECT_THAT(
      FormatHead({.content_type = "text/plain", .content_length = 12}),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Type: text/plain\r\n"),
            HasSubstr("\r\nContent-Length: 12\r\n"), HasSubstr(" GMT\r\n"), EndsWith("\r\n\r\n"),
            Not(HasSubstr("Connection"))));
  EXPECT_THAT(FormatHead({.status = 404, .chunked = true, .keep_alive = false}),
              AllOf(StartsWith("HTTP/1.1 404 Not Found\r\n"),
                    HasSubstr("\r\nTransfer-Encoding: chunked\r\n"),
                    HasSubstr("\r\nConnection: close\r\n"), Not(HasSubstr("Content-"))));
  EXPECT_THAT(FormatHead({.http_1_0 = true}), HasSubstr("\r\nConnection: keep-alive\r\n"));
}

TEST(ReplyHead, NoHeaderCanSplitTheReply) {
  const Headers headers = {{"X-Good", "va lue\t1"},
                           {"X-Bad", "a\r\nInjected: 1"},
                           {"X-Nul", std::string(1, '\0')},
                           {"Injected\r\nA", "1"},
                           {"", "1"},
                           {"With Space", "1"},
                           {"content-LENGTH", "7"},
                           {"Transfer-Encoding", "chunked"},
                           {"connection", "close"}};
  const std::string head = FormatHead(
      {.content_type = "text/plain\r\nInjected: 1", .headers = headers, .content_length = 1});
  EXPECT_THAT(head, HasSubstr("\r\nX-Good: va lue\t1\r\n"));
  for (const char* bad : {"Injected", "X-Bad", "X-Nul", "Space", "LENGTH", "chunked", "close"}) {
    EXPECT_THAT(head, Not(HasSubstr(bad)));
  }
}

TEST(ReplyHead, AnErrorIsJsonWhateverItQuotes) {
  const std::string reply = FormatError(400, "bad \"x\" \xff\x80\r\n", false, false, false);
  const std::size_t body = reply.find("\r\n\r\n") + 4;
  EXPECT_THAT(reply, HasSubstr("Content-Length: " + std::to_string(reply.size() - body)));
  ASSERT_OK_AND_ASSIGN(const base::Json json, base::ParseJson(reply.substr(body)));
  EXPECT_EQ(*json.Find("error")->Find("message")->string(), "bad \"x\" ????");
}

std::string Drain(WriteQueue& queue, std::size_t step) {
  std::string bytes;
  while (!queue.empty()) {
    WriteQueue::Pieces pieces;
    std::size_t left = step;
    std::size_t taken = 0;
    for (const std::string_view piece : queue.Front(pieces)) {
      EXPECT_FALSE(piece.empty());
      const std::string_view part = piece.substr(0, left);
      bytes += part;
      left -= part.size();
      taken += part.size();
    }
    queue.Consume(taken);
  }
  return bytes;
}

RC_GTEST_PROP(WriteQueue, GivesBackWhatWentInWhateverTheSteps, ()) {
  WriteQueue queue;
  std::string expected;
  std::string got;
  const auto actions = *rc::gen::container<std::vector<std::pair<int, std::size_t>>>(rc::gen::pair(
      rc::gen::inRange(0, 5), rc::gen::oneOf(rc::gen::inRange<std::size_t>(0, 20),
                                             rc::gen::inRange<std::size_t>(3000, 20000))));
  char next = 'a';
  for (const auto& [action, bytes] : actions) {
    const std::string text(bytes, next);
    next = next == 'z' ? 'a' : static_cast<char>(next + 1);
    if (action == 0) {
      queue.Append(text);
    } else if (action == 1) {
      queue.Adopt(text);
    } else if (action == 2) {  // another queue that is partly sent
      WriteQueue other;
      other.Append("x");
      other.Append(text);
      other.Adopt(text);
      other.Consume(1);
      queue.Append(std::move(other));
      expected += text;
    } else {
      WriteQueue::Pieces pieces;
      const auto front = queue.Front(pieces);
      const std::string_view part = front.empty() ? std::string_view() : front[0].substr(0, bytes);
      got += part;
      queue.Consume(part.size());
      continue;
    }
    expected += text;
    RC_ASSERT(queue.bytes() + got.size() == expected.size());
  }
  got += Drain(queue, 777);
  RC_ASSERT(got == expected);
  RC_ASSERT(queue.bytes() == 0u);
}

TEST(WriteQueue, SendsManyPiecesInOrder) {
  WriteQueue queue;
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece(5000, static_cast<char>('a' + i % 26));
    queue.Adopt(piece);
    expected += piece;
  }
  EXPECT_EQ(Drain(queue, 12345), expected);
}

}  // namespace
}  // namespace syncline::http
