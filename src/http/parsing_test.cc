// What reads requests without a socket: chunk framing, request reader, request target.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "base/result_matchers.h"
#include "http/chunk_decoder.h"
#include "http/request_reader.h"
#include "http/request_target.h"
#include "http/test_client.h"

namespace syncline::http {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Stage = RequestReader::Stage;

constexpr ReadLimits kLimits = {.header_bytes = 4096, .body_bytes = 10000};

// Feeds pieces of the given sizes (the last one repeats); returns how many bytes were taken.
std::size_t FeedPieces(RequestReader& reader, std::string_view bytes,
                       const std::vector<std::size_t>& sizes) {
  std::size_t taken = 0;
  for (std::size_t i = 0; taken < bytes.size(); ++i) {
    const std::size_t size = sizes[std::min(i, sizes.size() - 1)];
    const std::string piece(bytes.substr(taken, size));  // no byte to be seen beyond it
    const std::size_t fed = reader.Feed(piece);
    taken += fed;
    if (fed < piece.size() || reader.stage() == Stage::kDone || reader.stage() == Stage::kFailed) {
      break;
    }
  }
  return taken;
}

ReadFailure FailureOf(std::string_view bytes, const ReadLimits& limits = kLimits) {
  RequestReader reader(limits);
  FeedPieces(reader, bytes, {bytes.size()});
  EXPECT_EQ(reader.stage(), Stage::kFailed) << bytes;
  return reader.stage() == Stage::kFailed ? reader.failure() : ReadFailure{.status = 0};
}

TEST(RequestReader, TakesARequestSplitAtEveryByte) {
  const std::string bytes =
      "POST /a%20b?x=1&y=%26+z&empty HTTP/1.1\r\nHost: h\r\nX-One: first \r\nx-one: second\r\n"
      "Content-Length: 5\r\n\r\nhello";
  const std::string next = "GET / HT";
  for (std::size_t first = 1; first <= bytes.size(); ++first) {
    RequestReader reader(kLimits);
    ASSERT_EQ(FeedPieces(reader, bytes + next, {first, 1000}), bytes.size()) << first;
    ASSERT_EQ(reader.stage(), Stage::kDone) << first;
    const Request request = reader.TakeRequest();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a b");
    EXPECT_THAT(request.query, ElementsAre(Pair("x", "1"), Pair("y", "& z"), Pair("empty", "")));
    EXPECT_EQ(request.body, "hello");
    ASSERT_NE(request.Header("x-ONE"), nullptr);
    EXPECT_EQ(*request.Header("x-ONE"), "first");
    EXPECT_EQ(request.Header("x-two"), nullptr);
    EXPECT_EQ(*request.Query("y"), "& z");
    EXPECT_EQ(request.Query("Y"), nullptr);
  }
}

RC_GTEST_PROP(RequestReader, AnySplitOfAChunkedBodyGivesTheSameBody, ()) {
  const auto body = *rc::gen::string<std::string>();
  const auto chunk = *rc::gen::inRange<std::size_t>(1, 30);
  const auto sizes = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(1, 40)));
  const std::string bytes = PostChunked("/", body, chunk);
  RequestReader reader(kLimits);
  RC_ASSERT(FeedPieces(reader, bytes + "GET", sizes) == bytes.size());
  RC_ASSERT(reader.stage() == Stage::kDone);
  RC_ASSERT(reader.TakeRequest().body == body);
}

// Takes whatever can be read straight to its place that way.
RC_GTEST_PROP(RequestReader, ReadingTheBodyInPlaceGivesTheSameBody, (bool chunked)) {
  const auto body = *rc::gen::string<std::string>();
  const auto step = *rc::gen::inRange<std::size_t>(1, 40);
  const std::string bytes = chunked ? PostChunked("/", body, 17) : Post("/", body);
  std::string_view rest = bytes;
  RequestReader reader(kLimits);
  while (!rest.empty()) {
    if (reader.body_bytes_ahead() > 0) {
      reader.ReadBody([&](std::span<char> place) {
        RC_ASSERT(place.size() <= reader.body_bytes_ahead());
        const std::string_view part = rest.substr(0, std::min(place.size(), step));
        std::ranges::copy(part, place.begin());
        rest.remove_prefix(part.size());
        return part.size();
      });
    } else {
      rest.remove_prefix(reader.Feed(rest.substr(0, step)));
    }
  }
  RC_ASSERT(reader.stage() == Stage::kDone);
  RC_ASSERT(reader.TakeRequest().body == body);
}

TEST(RequestReader, AContentLengthAloneTakesNoMemory) {
  RequestReader reader({.header_bytes = 4096, .body_bytes = 1ULL << 40});
  reader.Feed("POST / HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n");
  ASSERT_EQ(reader.stage(), Stage::kBody);
  std::size_t offered = 0;
  reader.ReadBody([&](std::span<char> place) {
    offered = place.size();
    return std::size_t{0};
  });
  EXPECT_EQ(offered, RequestReader::kBodyStep);
  EXPECT_EQ(reader.body_bytes_ahead(), 1000000000000);
}

TEST(RequestReader, KeepsToTheLimitOfHeadersExactly) {
  const auto request = [](std::size_t bytes) {
    std::string text = "GET / HTTP/1.1\r\nA: \r\n\r\n";
    text.insert(text.size() - 4, std::string(bytes - text.size(), 'a'));
    return text;
  };
  for (const std::size_t piece : {std::size_t{1}, std::size_t{100}, std::size_t{5000}}) {
    RequestReader fits(kLimits);
    EXPECT_EQ(FeedPieces(fits, request(4096), {piece}), 4096);
    EXPECT_EQ(fits.stage(), Stage::kDone);
    RequestReader exceeds(kLimits);
    FeedPieces(exceeds, request(4097), {piece});
    ASSERT_EQ(exceeds.stage(), Stage::kFailed);
    EXPECT_EQ(exceeds.failure().status, 431);
    EXPECT_THAT(exceeds.failure().message, HasSubstr("4096 bytes"));
  }
}

TEST(RequestReader, ManyCompleteHeadersCountForTheLimit) {
  std::string bytes = "GET / HTTP/1.1\r\n";
  while (bytes.size() < 5000) bytes += "A: b\r\n";
  for (const std::size_t piece : {std::size_t{1}, std::size_t{6}, std::size_t{1000}}) {
    RequestReader reader(kLimits);
    EXPECT_LE(FeedPieces(reader, bytes, {piece}), 4096 + piece);
    ASSERT_EQ(reader.stage(), Stage::kFailed);
    EXPECT_EQ(reader.failure().status, 431);
  }
}

TEST(RequestReader, KeepsToTheLimitOfBodies) {
  RequestReader fits(kLimits);
  FeedPieces(fits, Post("/", std::string(10000, 'a')), {333});
  EXPECT_EQ(fits.stage(), Stage::kDone);
  RequestReader chunks_fit(kLimits);
  FeedPieces(chunks_fit, PostChunked("/", std::string(10000, 'a'), 1000), {333});
  EXPECT_EQ(chunks_fit.stage(), Stage::kDone);

  const ReadFailure sized = FailureOf("POST / HTTP/1.1\r\nContent-Length: 10001\r\n\r\n");
  EXPECT_EQ(sized.status, 413);
  EXPECT_EQ(sized.message, "body of 10001 bytes exceeds the limit of 10000 bytes");
  EXPECT_EQ(FailureOf(PostChunked("/", std::string(10001, 'a'), 1000)).status, 413);
  // The size of a chunk alone, before any of its data; and one that would overflow a sum.
  const std::string head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(FailureOf(head + "2711\r\n").status, 413);
  EXPECT_EQ(FailureOf(head + "1\r\na\r\nffffffffffffffff\r\n").status, 413);
}

TEST(RequestReader, RefusesWhatIsMalformed) {
  const std::string chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::string> requests = {
      "\x16\x03\x01\x02",  // TLS
      "GET\r\n\r\n",
      "GET  / HTTP/1.1\r\n\r\n",
      "GET / HTTP/2.0\r\n\r\n",
      "GET / HTTP/1.1\nHost: a\n\n",
      "GET /%zz HTTP/1.1\r\n\r\n",
      "GET /%4 HTTP/1.1\r\n\r\n",
      "GET /?a=%+1 HTTP/1.1\r\n\r\n",
      "GET a HTTP/1.1\r\n\r\n",
      "CONNECT host:1 HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nA b: c\r\n\r\n",
      "GET / HTTP/1.1\r\nA : c\r\n\r\n",
      "GET / HTTP/1.1\r\n: c\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
      chunked + "x\r\n",
      chunked + "\r\n",
      chunked + "-1\r\n",
      chunked + "0x1\r\n",
      chunked + "10000000000000000\r\n",
      chunked + "1\n",
      chunked + "1\r\nab\r\n",
      chunked + "1\r\na\n",
      chunked + "1;ext\n",
      chunked + "0\r\nA: b\n\r\n",
      chunked + "1;" + std::string(5000, 'a'),
  };
  for (const std::string& request : requests) {
    EXPECT_EQ(FailureOf(request).status, 400) << request;
  }
  EXPECT_EQ(FailureOf("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n").status, 501);
  EXPECT_EQ(FailureOf(chunked + "0\r\n" + std::string(5000, 'a')).status, 431);
}

TEST(RequestReader, TakesWhatIsUnusualButAllowed) {
  const std::vector<std::string> requests = {
      "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
      "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=\"b\"\r\nab\r\n0\r\nT: x\r\n\r\n",
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0002\r\nab\r\n000\r\n\r\n",
      "DELETE / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
  };
  for (const std::string& request : requests) {
    for (const std::size_t piece : {std::size_t{1}, request.size()}) {
      RequestReader reader(kLimits);
      EXPECT_EQ(FeedPieces(reader, request, {piece}), request.size()) << request;
      ASSERT_EQ(reader.stage(), Stage::kDone) << request;
      const Request read = reader.TakeRequest();
      EXPECT_TRUE(read.body == "ab" || read.method != "POST") << request;
      EXPECT_EQ(read.Header("T"), nullptr) << "a trailer is no header";
    }
  }
}

TEST(RequestReader, TellsHowTheReplyIsFramed) {
  const auto traits = [](std::string_view request) {
    RequestReader reader(kLimits);
    reader.Feed(request);
    EXPECT_EQ(reader.stage(), Stage::kDone);
    return reader.traits();
  };
  EXPECT_TRUE(traits("GET / HTTP/1.1\r\n\r\n").keep_alive);
  EXPECT_FALSE(traits("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").keep_alive);
  EXPECT_FALSE(traits("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(traits("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
  EXPECT_TRUE(traits("GET / HTTP/1.0\r\n\r\n").http_1_0);
  EXPECT_TRUE(traits("HEAD / HTTP/1.1\r\n\r\n").head_only);
}

TEST(RequestReader, TellsOnceThatTheClientWaitsToSendItsBody) {
  const std::string head = "POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
  RequestReader reader(kLimits);
  reader.Feed(head);
  EXPECT_TRUE(reader.TakeExpectation());
  EXPECT_FALSE(reader.TakeExpectation());
  RequestReader sends_at_once(kLimits);
  sends_at_once.Feed(head + "a");
  EXPECT_FALSE(sends_at_once.TakeExpectation());
}

TEST(ParseTarget, TakesTheFormsOfHttp) {
  const auto parse = [](std::string_view target) {
    Request request;
    EXPECT_OK(ParseTarget(target, request));
    return request;
  };
  EXPECT_EQ(parse("/").path, "/");
  EXPECT_EQ(parse("/a+b").path, "/a+b");
  EXPECT_EQ(parse("*").path, "*");
  EXPECT_EQ(parse("http://host:80/p?q=1").path, "/p");
  EXPECT_EQ(*parse("http://host:80/p?q=1").Query("q"), "1");
  EXPECT_EQ(parse("https://host").path, "/");
  EXPECT_EQ(*parse("http://host?q=2").Query("q"), "2");
  EXPECT_EQ(parse("/%00").path, std::string(1, '/') + '\0');
  EXPECT_THAT(parse("/?&&a=b=c&=d").query, ElementsAre(Pair("a", "b=c"), Pair("", "d")));
  Request request;
  EXPECT_ERROR(ParseTarget("/%a", request), base::Code::kInvalidArgument, "%a");
}

}  // namespace
}  // namespace syncline::http
