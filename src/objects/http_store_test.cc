// Reading over HTTP from servers that are slow, broken or lying.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "objects/object_store.h"
#include "objects/test_server.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;

std::string Pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 31 + (i >> 8)) & 0xff);
  return text;
}

Settings Quick() { return {.connect_seconds = 5, .stall_seconds = 20, .retry_seconds = 20}; }

std::unique_ptr<ObjectStore> MustOpen(const std::string& url, const Settings& settings = Quick()) {
  auto store = Open(FileSystem::Posix(), url, settings);
  EXPECT_OK(store);
  return store ? *std::move(store) : nullptr;
}

struct ReadResult {
  base::Status status;
  std::string bytes;
  std::uint64_t received = 0;
};

ReadResult Read(ObjectStore& store, std::size_t size, std::uint64_t offset,
                const std::string& tag = "", const CancelToken* cancel = nullptr) {
  ReadResult result;
  result.bytes.resize(size);
  result.status = store.ReadAt(
      "object", std::as_writable_bytes(std::span(result.bytes)), offset, tag,
      [&](std::uint64_t more) { result.received += more; }, cancel);
  return result;
}

// A 206 for what was asked of `content`, with only the first `bytes` of the body.
void SendPart(const TestRequest& request, TestConnection& connection, const std::string& content,
              std::size_t bytes, std::string_view headers = "") {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  ASSERT_TRUE(request.Range(first, last));
  const std::string body = content.substr(first, last - first + 1);
  connection.Send(fmt::format(
      "HTTP/1.1 206 Part\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{}\r\n{}\r\n",
      body.size(), first, last, content.size(), headers));
  connection.Send(std::string_view(body).substr(0, bytes));
  if (bytes < body.size()) connection.Close();
}

TEST(HttpStore, ResumesWhereAConnectionBroke) {
  const std::string content = Pattern(300000);
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    SendPart(request, connection, content, 70000, "ETag: \"a\"\r\n");
  });
  const auto store = MustOpen(server.url());
  const ReadResult read = Read(*store, 250000, 1000);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content.substr(1000, 250000));
  EXPECT_EQ(read.received, 250000);  // nothing was fetched twice
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 4);
  EXPECT_EQ(requests[0].Header("range"), "bytes=1000-250999");
  EXPECT_EQ(requests[0].Header("if-match"), "");
  EXPECT_EQ(requests[1].Header("range"), "bytes=71000-250999");
  EXPECT_EQ(requests[3].Header("range"), "bytes=211000-250999");
  EXPECT_EQ(requests[3].Header("if-match"), "\"a\"");  // still the object of the first reply
}

TEST(HttpStore, OneTryIsOneTry) {
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    SendPart(request, connection, Pattern(100), 10);
  });
  Settings settings = Quick();
  settings.retry_seconds = 0;
  const auto store = MustOpen(server.url(), settings);
  const auto first = Read(*store, 100, 0);
  // What has come counts as success so far: the time starts anew, and there is none of it.
  EXPECT_ERROR(first.status, Code::kUnavailable, "/object");
  EXPECT_EQ(server.requests().size(), 1);
}

TEST(HttpStore, GivesUpOnAStall) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 206 Part\r\nContent-Length: 100\r\n");
    connection.Stall();
  });
  Settings settings = Quick();
  settings.stall_seconds = 0.1;
  settings.retry_seconds = 0.3;
  const auto store = MustOpen(server.url(), settings);
  EXPECT_ERROR(Read(*store, 100, 0).status, Code::kTimeout, "no byte has moved for 0.1 s");
  EXPECT_ERROR(store->ReadText("object", 100, nullptr), Code::kTimeout, server.url() + "/object");
}

TEST(HttpStore, GoesOnAfterAStall) {
  const std::string content = Pattern(5000);
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    if (calls++ > 0) return SendPart(request, connection, content, 5000);
    connection.Send(
        "HTTP/1.1 206 Part\r\nContent-Length: 5000\r\n"
        "Content-Range: bytes 0-4999/5000\r\n\r\n" +
        content.substr(0, 1234));
    connection.Stall();
  });
  Settings settings = Quick();
  settings.stall_seconds = 0.1;
  const auto store = MustOpen(server.url(), settings);
  const ReadResult read = Read(*store, 5000, 0);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content);
  EXPECT_EQ(server.requests().at(1).Header("range"), "bytes=1234-4999");
}

TEST(HttpStore, CancelsWhileAServerStalls) {
  std::atomic<bool> reached = false;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    reached = true;
    connection.Stall();
  });
  Settings settings = Quick();
  settings.stall_seconds = 1e6;
  const auto store = MustOpen(server.url(), settings);
  CancelToken cancel;
  std::thread canceller([&] {
    while (!reached) std::this_thread::yield();
    cancel.Cancel();
  });
  EXPECT_ERROR(Read(*store, 10, 0, "", &cancel).status, Code::kCancelled, "cancelled");
  canceller.join();
}

TEST(HttpStore, CancelsWhileItWaitsForTheNextTry) {
  CancelToken cancel;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(503, "Retry-After: 100000\r\n", "");
    cancel.Cancel();
  });
  Settings settings = Quick();
  settings.retry_seconds = 1e6;
  const auto store = MustOpen(server.url(), settings);
  EXPECT_ERROR(Read(*store, 10, 0, "", &cancel).status, Code::kCancelled, "cancelled");
}

TEST(HttpStore, TriesAgainAfterServerErrors) {
  const std::string content = Pattern(1000);
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    if (calls++ % 3 < 2) return void(connection.Reply(500, "", "out of order"));
    if (request.method == "HEAD") {
      return void(connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"));
    }
    if (request.Header("range").empty()) return void(connection.Reply(200, "", content));
    SendPart(request, connection, content, 1000);
  });
  const auto store = MustOpen(server.url());
  ASSERT_OK_AND_ASSIGN(const ObjectInfo info, store->Stat("object", nullptr));
  EXPECT_EQ(info.bytes, 1000);
  const ReadResult read = Read(*store, 500, 500);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content.substr(500));
  ASSERT_OK_AND_ASSIGN(const std::string text, store->ReadText("object", 1000, nullptr));
  EXPECT_EQ(text, content);
  EXPECT_EQ(calls, 9);
  EXPECT_EQ(server.connections(), 1);  // all of it over one connection
}

TEST(HttpStore, ObeysRetryAfterWithinItsTime) {
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    if (calls++ == 0) return void(connection.Reply(429, "Retry-After: 1\r\n", ""));
    connection.Reply(429, "Retry-After: 100\r\n", "");
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 10, nullptr), Code::kUnavailable,
               "the server answers 429; the server asks for 100 s");
  EXPECT_EQ(calls, 2);
}

TEST(HttpStore, StatusesThatWillNotPass) {
  struct Case {
    int status;
    Code code;
  };
  for (const Case& test : {Case{400, Code::kIncompatible}, Case{401, Code::kPermissionDenied},
                           Case{403, Code::kPermissionDenied}, Case{404, Code::kNotFound},
                           Case{410, Code::kNotFound}, Case{501, Code::kIncompatible}}) {
    TestServer server([&](const TestRequest&, TestConnection& connection) {
      connection.Reply(test.status, "", "");
    });
    const auto store = MustOpen(server.url() + "/tree/");
    const std::string expected =
        fmt::format("{}/tree/object: the server answers {}", server.url(), test.status);
    EXPECT_ERROR(store->Stat("object", nullptr), test.code, expected);
    EXPECT_ERROR(Read(*store, 10, 0).status, test.code, expected);
    EXPECT_ERROR(store->ReadText("object", 10, nullptr), test.code, expected);
    EXPECT_EQ(server.requests().size(), 3);
  }
}

TEST(HttpStore, ContentLengthBeyondTheObject) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfewer");
    connection.Close();
  });
  Settings settings = Quick();
  settings.retry_seconds = 0.1;
  const auto store = MustOpen(server.url(), settings);
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kUnavailable, "/object");
  EXPECT_GE(server.requests().size(), 2);
}

TEST(HttpStore, RangesThatLie) {
  const std::pair<const char*, const char*> cases[] = {
      {"Content-Range: bytes 11-20/1000\r\nContent-Length: 10\r\n", "Content-Range 'bytes 11-20"},
      {"Content-Range: bytes 9-18/1000\r\nContent-Length: 10\r\n", "Content-Range 'bytes 9-18"},
      {"Content-Range: bytes 12-19/1000\r\nContent-Length: 8\r\n", "Content-Range 'bytes 12-19"},
      {"Content-Range: bytes 10-29/1000\r\nContent-Length: 20\r\n", "Content-Range 'bytes 10-29"},
      {"Content-Range: bytes 10-19/15\r\nContent-Length: 10\r\n", "Content-Range 'bytes 10-19/15"},
      {"Content-Range: bytes 10-19/1000\r\nContent-Length: 9\r\n", "Content-Length says 9"},
      {"Content-Range: 10-19/1000\r\nContent-Length: 10\r\n", "Content-Range '10-19"},
      {"Content-Length: 10\r\n", "Content-Range ''"},
      {"Content-Range: bytes 10-14/15\r\nContent-Length: 5\r\n",
       "truncated: expected at least 20 bytes, found 15"},
      {"Content-Range: bytes 10-19/1000\r\nContent-Length: x\r\n", ""},
      {"Content-Range: bytes 10-19/1000\r\nContent-Encoding: gzip\r\n", "Content-Encoding gzip"},
  };
  for (const auto& [headers, message] : cases) {
    TestServer server([&](const TestRequest&, TestConnection& connection) {
      connection.Send(fmt::format("HTTP/1.1 206 Part\r\n{}\r\n0123456789abcdefghij", headers));
      connection.Close();
    });
    const auto store = MustOpen(server.url());
    const auto status = Read(*store, 10, 10).status;
    EXPECT_ERROR(status,
                 std::string_view(headers).find("gzip") == std::string_view::npos
                     ? Code::kCorrupt
                     : Code::kIncompatible,
                 message);
    EXPECT_EQ(server.requests().size(), 1) << headers;
  }
}

TEST(HttpStore, MoreThanThePartThatWasPromised) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 206 Part\r\nContent-Range: bytes 0-9/100\r\n\r\n0123456789abc");
    connection.Close();
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(Read(*store, 10, 0).status, Code::kCorrupt, "more than it promised");
}

TEST(HttpStore, LessThanAChunkedReplyPromised) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send(
        "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-9/100\r\n"
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(Read(*store, 10, 0).status, Code::kCorrupt, "ends after 3 of the 10 bytes");
}

TEST(HttpStore, PartsSmallerThanAsked) {
  const std::string content = Pattern(1000);
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    ASSERT_TRUE(request.Range(first, last));
    last = std::min(last, first + 299);
    connection.Reply(206, fmt::format("Content-Range: bytes {}-{}/*\r\n", first, last),
                     content.substr(first, last - first + 1));
  });
  const auto store = MustOpen(server.url());
  const ReadResult read = Read(*store, 1000, 0);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content);
  EXPECT_EQ(server.requests().size(), 4);
}

TEST(HttpStore, BeyondTheEnd) {
  base::TempDir directory;
  ASSERT_OK(
      base::WriteTextAtomically(FileSystem::Posix(), directory / "object", "0123456789", false));
  TestServer server(ServeDirectory(directory.path()));
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(Read(*store, 10, 5).status, Code::kCorrupt,
               "/object is truncated: expected at least 15 bytes, found 10");
  EXPECT_ERROR(Read(*store, 10, 50).status, Code::kCorrupt,
               "/object is truncated: expected at least 60 bytes, found 10");
}

TEST(HttpStore, IgnoredRange) {
  const std::string content = Pattern(200000);
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(200, "ETag: \"a\"\r\n", content);
  });
  const auto store = MustOpen(server.url());
  for (const std::uint64_t offset : {0, 1, 100000, 199990}) {
    const ReadResult read = Read(*store, 10, offset);
    ASSERT_OK(read.status);
    EXPECT_EQ(read.bytes, content.substr(offset, 10));
  }
  EXPECT_ERROR(Read(*store, 10, 199991).status, Code::kCorrupt,
               "expected at least 200001 bytes, found 200000");
}

TEST(HttpStore, IgnoredRangeFarFromTheBeginning) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
    connection.Stall();
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(Read(*store, 10, 100'000'000).status, Code::kIncompatible, "ignores Range");
}

TEST(HttpStore, IgnoredRangeAfterABreak) {
  const std::string content = Pattern(200000);
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.size()));
    connection.Send(std::string_view(content).substr(0, calls++ == 0 ? 60000 : content.size()));
    connection.Close();
  });
  const auto store = MustOpen(server.url());
  const ReadResult read = Read(*store, 100000, 50000);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content.substr(50000, 100000));
  EXPECT_EQ(read.received, 100000);
}

TEST(HttpStore, AnotherObjectUnderTheSameName) {
  const std::string content = Pattern(1000);
  std::atomic<int> calls = 0;
  // Ignores If-Match.
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    SendPart(request, connection, content, 500,
             calls++ == 0 ? "ETag: \"a\"\r\n" : "ETag: \"b\"\r\n");
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(Read(*store, 1000, 0).status, Code::kOutOfOrder,
               "changed while it was read: its tag was \"a\" and is \"b\"");
}

TEST(HttpStore, TagsAreKept) {
  base::TempDir directory;
  FileSystem& files = FileSystem::Posix();
  ASSERT_OK(base::WriteTextAtomically(files, directory / "object", "old content", false));
  TestServer server(ServeDirectory(directory.path()));
  const auto store = MustOpen(server.url());
  ASSERT_OK_AND_ASSIGN(const ObjectInfo info, store->Stat("object", nullptr));
  ASSERT_FALSE(info.tag.empty());
  EXPECT_OK(Read(*store, 5, 0, info.tag).status);
  ASSERT_OK(base::WriteTextAtomically(files, directory / "object", "new content", false));
  EXPECT_ERROR(Read(*store, 5, 0, info.tag).status, Code::kOutOfOrder, "changed while it was read");
}

TEST(HttpStore, WeakTagsAreComparedHere) {
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    SendPart(request, connection, Pattern(100), 100,
             calls++ == 0 ? "ETag: W/\"a\"\r\n" : "ETag: W/\"b\"\r\n");
  });
  const auto store = MustOpen(server.url());
  EXPECT_OK(Read(*store, 100, 0, "W/\"a\"").status);
  EXPECT_EQ(server.requests().at(0).Header("if-match"), "");
  EXPECT_ERROR(Read(*store, 100, 0, "W/\"a\"").status, Code::kOutOfOrder, "changed");
}

TEST(HttpStore, Redirects) {
  base::TempDir directory;
  ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), directory / "object", "here", false));
  TestServer target(ServeDirectory(directory.path()));
  for (const int status : {301, 302, 303, 307, 308}) {
    TestServer server([&](const TestRequest&, TestConnection& connection) {
      connection.Reply(status, fmt::format("Location: {}/object\r\n", target.url()), "");
    });
    std::string url = server.url();
    url.insert(url.find("://") + 3, "me:secret@");
    const auto store = MustOpen(url);
    EXPECT_EQ(store->ReadText("other", 100, nullptr).value_or(""), "here");
    EXPECT_EQ(server.requests().at(0).Header("authorization"), "Basic bWU6c2VjcmV0");
    EXPECT_EQ(target.requests().back().Header("authorization"), "");  // not for others
  }
}

TEST(HttpStore, RedirectsThatAreRefused) {
  std::string location;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(302, fmt::format("Location: {}\r\n", location), "");
  });
  const auto store = MustOpen(server.url());
  for (const char* bad : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"}) {
    location = bad;
    EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kIncompatible,
                 fmt::format("a redirect to {} is refused: only http and https", bad));
  }
  location = "/object";
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kIncompatible, "too many");
  EXPECT_EQ(server.requests().size(), 3 + 6);
}

TEST(HttpStore, EndlessText) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\n\r\n");
    while (connection.Send(std::string(10000, 'x'))) {
    }
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 100'000, nullptr), Code::kLimitExceeded,
               "/object has more than the limit of 100000 bytes");
}

TEST(HttpStore, LargeTextIsNotRead) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n");
    connection.Stall();
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kLimitExceeded,
               "/object has 1001 bytes, more than the limit of 1000");
}

TEST(HttpStore, EndlessHeaders) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\n");
    while (connection.Send("X-More: " + std::string(1000, 'x') + "\r\n")) {
    }
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kCorrupt, "headers exceed");
}

TEST(HttpStore, EndlessErrorBody) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 404 Not Found\r\n\r\n");
    while (connection.Send(std::string(10000, 'x'))) {
    }
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kNotFound, "/object");
}

TEST(HttpStore, NoHttpAtAll) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("SSH-2.0-OpenSSH_9.2\r\n");
    connection.Close();
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->ReadText("object", 1000, nullptr), Code::kCorrupt, "/object");
}

TEST(HttpStore, NoServer) {
  std::string url;
  {
    TestServer server([](const TestRequest&, TestConnection&) {});
    url = server.url();
  }
  Settings settings = Quick();
  settings.retry_seconds = 0.1;
  const auto store = MustOpen(url, settings);
  EXPECT_ERROR(store->Stat("object", nullptr), Code::kUnavailable, url + "/object");
}

TEST(HttpStore, SizeThatIsNotSaid) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Send("HTTP/1.1 200 OK\r\n\r\n");
    connection.Close();
  });
  const auto store = MustOpen(server.url());
  EXPECT_ERROR(store->Stat("object", nullptr), Code::kIncompatible, "does not say its size");
}

TEST(HttpStore, SecretsStayInTheRequest) {
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.target.find("whole") != std::string::npos) {
      return void(connection.Reply(200, "", "text"));
    }
    connection.Reply(403, "", "");
  });
  std::string url = server.url() + "/tree?sig=hush";
  url.insert(url.find("://") + 3, "me:p%40ss@");
  const auto store = MustOpen(url);
  EXPECT_EQ(store->url(), server.url() + "/tree");
  EXPECT_EQ(store->ReadText("a b+c/whole", 100, nullptr).value_or(""), "text");
  const TestRequest request = server.requests().at(0);
  EXPECT_EQ(request.target, "/tree/a%20b%2Bc/whole?sig=hush");
  EXPECT_EQ(request.Header("authorization"), "Basic bWU6cEBzcw==");
  const auto check = [&](const base::Error& error) {
    for (const char* secret : {"me:", "p%40ss", "p@ss", "hush", "bWU6cEBzcw"}) {
      EXPECT_EQ(error.message.find(secret), std::string::npos) << error.message;
    }
  };
  check(store->Stat("x", nullptr).error());
  check(store->ReadText("x", 10, nullptr).error());
  check(Read(*store, 10, 0).status.error());
  check(store->List("", false, nullptr).error());
  check(store->PutText("x", "", false, nullptr).error());
  for (const char* bad : {"http://me:p%40ss@host:99999/x?hush", "http://me:p%40ss@/x?hush",
                          "ftp://me:p%40ss@host/x?hush", "http://me:p@ss@ho st/x?hush"}) {
    check(Open(FileSystem::Posix(), bad, {}).error());
  }
}

TEST(HttpStore, Tls) {
  base::TempDir directory;
  FileSystem& files = FileSystem::Posix();
  const std::string content = Pattern(1 << 20);
  ASSERT_OK(base::WriteTextAtomically(files, directory / "object", content, false));
  const TestCertificate certificate;
  const TestCertificate other("Another authority");
  const TestCertificate impostor;  // the same name, another key
  TestServer server(ServeDirectory(directory.path()), &certificate);
  Settings settings = Quick();
  EXPECT_ERROR(MustOpen(server.url(), settings)->Stat("object", nullptr), Code::kPermissionDenied,
               "certificate is refused");
  settings.ca_file = directory / "other.pem";
  ASSERT_OK(base::WriteTextAtomically(files, settings.ca_file, other.authority_pem(), false));
  EXPECT_ERROR(MustOpen(server.url(), settings)->Stat("object", nullptr), Code::kPermissionDenied,
               "certificate is refused");
  ASSERT_OK(base::WriteTextAtomically(files, settings.ca_file, impostor.authority_pem(), false));
  EXPECT_ERROR(MustOpen(server.url(), settings)->Stat("object", nullptr), Code::kIncompatible,
               "no TLS with this server");
  settings.ca_file = directory / "missing.pem";
  EXPECT_ERROR(MustOpen(server.url(), settings)->Stat("object", nullptr), Code::kInvalidArgument,
               "missing.pem");
  settings.ca_file = directory / "ca.pem";
  ASSERT_OK(base::WriteTextAtomically(files, settings.ca_file, certificate.authority_pem(), false));
  const auto store = MustOpen(server.url(), settings);
  const ReadResult read = Read(*store, content.size(), 0);
  ASSERT_OK(read.status);
  EXPECT_EQ(read.bytes, content);
  // The certificate is for 127.0.0.1 alone.
  const auto by_name = MustOpen(fmt::format("https://localhost:{}", server.port()), settings);
  EXPECT_ERROR(by_name->Stat("object", nullptr), Code::kPermissionDenied, "certificate");
}

TEST(HttpStore, NoWayFromHttpsToHttp) {
  base::TempDir directory;
  const TestCertificate certificate;
  Settings settings = Quick();
  settings.ca_file = directory / "ca.pem";
  ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), settings.ca_file,
                                      certificate.authority_pem(), false));
  TestServer target(ServeDirectory(directory.path()));
  TestServer server(
      [&](const TestRequest&, TestConnection& connection) {
        connection.Reply(302, fmt::format("Location: {}/ca.pem\r\n", target.url()), "");
      },
      &certificate);
  EXPECT_ERROR(MustOpen(server.url(), settings)->ReadText("object", 100000, nullptr),
               Code::kIncompatible, "only https");
  EXPECT_EQ(target.requests().size(), 0);
}

TEST(HttpStore, ManyThreads) {
  base::TempDir directory;
  const std::string content = Pattern(1 << 20);
  ASSERT_OK(base::WriteTextAtomically(FileSystem::Posix(), directory / "object", content, false));
  TestServer server(ServeDirectory(directory.path()));
  const auto store = MustOpen(server.url());
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < 20; ++i) {
        const std::size_t offset = (thread * 20 + i) * 10007;
        const ReadResult read = Read(*store, 50000, offset);
        EXPECT_OK(read.status);
        EXPECT_EQ(read.bytes, content.substr(offset, 50000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(server.connections(), 4);
}

}  // namespace
}  // namespace syncline::objects
