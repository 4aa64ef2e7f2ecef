#include "objects/retry.h"

#include <gtest/gtest.h>

#include "base/result_matchers.h"
#include "objects/reply_head.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::Status;
using testing::DoubleEq;
using testing::ElementsAre;

// A clock that only waiting moves.
struct TestClock {
  double now = 1000;
  double random = 0;
  std::vector<double> waits;

  RetryClock clock() {
    return {.now = [this] { return now; },
            .wait =
                [this](double seconds, const CancelToken*) {
                  waits.push_back(seconds);
                  now += seconds;
                  return Status();
                },
            .random = [this] { return random; }};
  }
};

Failure Passing() { return {.error = {Code::kUnavailable, "busy"}, .may_pass = true}; }

TEST(Retry, WaitsGrow) {
  TestClock time{.random = 0.5};
  Retry retry(1e6, nullptr, time.clock());
  for (int i = 0; i < 9; ++i) ASSERT_OK(retry.After(Passing()));
  EXPECT_THAT(time.waits, ElementsAre(DoubleEq(0.15), DoubleEq(0.3), DoubleEq(0.6), DoubleEq(1.2),
                                      DoubleEq(2.4), DoubleEq(4.8), DoubleEq(7.5), DoubleEq(7.5),
                                      DoubleEq(7.5)));
  retry.Progressed();
  ASSERT_OK(retry.After(Passing()));
  EXPECT_DOUBLE_EQ(time.waits.back(), 0.15);
}

TEST(Retry, EndsWithItsTime) {
  TestClock time;
  Retry retry(1, nullptr, time.clock());
  int tries = 1;
  Status status;
  while ((status = retry.After(Passing()))) ++tries;
  EXPECT_ERROR(status, Code::kUnavailable, "busy (tried 5 times, 1 s without success)");
  EXPECT_EQ(tries, 5);
  EXPECT_DOUBLE_EQ(time.now, 1001);  // the last try is made at the end of the time
}

TEST(Retry, ProgressStartsTheTimeAnew) {
  TestClock time;
  Retry retry(1, nullptr, time.clock());
  for (int i = 0; i < 100; ++i) {
    retry.Progressed();
    time.now += 0.9;
    ASSERT_OK(retry.After(Passing()));
  }
}

TEST(Retry, NoTime) {
  TestClock time;
  Retry retry(0, nullptr, time.clock());
  EXPECT_ERROR(retry.After(Passing()), Code::kUnavailable, "busy");
  EXPECT_THAT(time.waits, ElementsAre());
}

TEST(Retry, WhatWillNotPass) {
  TestClock time;
  Retry retry(100, nullptr, time.clock());
  EXPECT_ERROR(retry.After({.error = {Code::kNotFound, "gone"}}), Code::kNotFound, "gone");
}

TEST(Retry, ServersAreObeyed) {
  TestClock time;
  Retry retry(100, nullptr, time.clock());
  Failure failure = Passing();
  failure.retry_after = 30;
  ASSERT_OK(retry.After(failure));
  EXPECT_DOUBLE_EQ(time.waits.back(), 30);
  failure.retry_after = 0;  // never sooner than ours
  ASSERT_OK(retry.After(failure));
  EXPECT_DOUBLE_EQ(time.waits.back(), 0.2);
  failure.retry_after = 69.9;
  EXPECT_ERROR(retry.After(failure), Code::kUnavailable, "the server asks for 70 s");
  EXPECT_EQ(time.waits.size(), 2);
}

TEST(Retry, Cancelled) {
  CancelToken cancel;
  cancel.Cancel();
  TestClock time;
  Retry retry(100, &cancel, time.clock());
  EXPECT_ERROR(retry.After(Passing()), Code::kCancelled, "");
  EXPECT_ERROR(RetryClock::Real().wait(1e9, &cancel), Code::kCancelled, "");
}

TEST(Retry, AfterHeader) {
  EXPECT_EQ(ParseRetryAfter("120", 0), 120);
  EXPECT_EQ(ParseRetryAfter("0", 0), 0);
  EXPECT_EQ(ParseRetryAfter("Thu, 01 Jan 1970 00:02:00 GMT", 100), 20);
  EXPECT_EQ(ParseRetryAfter("Thu, 01 Jan 1970 00:02:00 GMT", 500), 0);
  EXPECT_EQ(ParseRetryAfter("soon", 0), std::nullopt);
  EXPECT_EQ(ParseRetryAfter("", 0), std::nullopt);
  EXPECT_EQ(ParseRetryAfter("99999999999999999999", 0), std::nullopt);
}

TEST(Retry, Statuses) {
  for (const int status : {408, 425, 429, 500, 502, 503, 504, 520, 599}) {
    EXPECT_TRUE(StatusMayPass(status)) << status;
  }
  for (const int status : {200, 301, 400, 401, 403, 404, 409, 412, 416, 501, 505}) {
    EXPECT_FALSE(StatusMayPass(status)) << status;
  }
}

TEST(ReplyHead, Lines) {
  ReplyHead head;
  ASSERT_OK(head.AddLine("HTTP/1.1 100 Continue\r\n"));
  ASSERT_OK(head.AddLine("X-Early: 1\r\n"));
  ASSERT_OK(head.AddLine("HTTP/1.1 206 Partial Content\r\n"));
  ASSERT_OK(head.AddLine("Content-Length:  12 \r\n"));
  ASSERT_OK(head.AddLine("ETAG: \"a:b\"\r\n"));
  ASSERT_OK(head.AddLine("content-length: 12\r\n"));
  ASSERT_OK(head.AddLine("no header\r\n"));
  EXPECT_EQ(head.status, 206);
  EXPECT_EQ(head.Length(), 12);
  EXPECT_EQ(head.Tag(), "\"a:b\"");
  EXPECT_EQ(head.Header("x-early"), nullptr);
  EXPECT_ERROR(head.AddLine("Content-Length: 13\r\n"), Code::kCorrupt, "Content-Length");
  EXPECT_ERROR(ReplyHead().AddLine("Content-Length: -1\r\n"), Code::kCorrupt, "Content-Length");
}

TEST(ReplyHead, ContentRanges) {
  const auto range = ContentRange::Parse("bytes 5-9/10");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5);
  EXPECT_EQ(range->last, 9);
  EXPECT_EQ(range->total, 10);
  EXPECT_EQ(ContentRange::Parse("bytes 5-9/*").value().total, std::nullopt);
  EXPECT_FALSE(ContentRange::Parse("bytes */10").value().has_range);
  for (const char* bad : {"", "bytes", "bytes 5-9", "bytes 9-5/10", "bytes 5-10/10", "bytes 5/10",
                          "bytes -9/10", "bytes 5-/10", "bytes 5-9/", "bytes 5-9/x", "items 5-9/10",
                          "bytes 5-99999999999999999999/*", "bytes 5-9/10/11"}) {
    EXPECT_EQ(ContentRange::Parse(bad).has_value(), false) << bad;
  }
}

}  // namespace
}  // namespace syncline::objects
