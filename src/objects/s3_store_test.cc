// S3: what the contract suite does not ask, and servers that refuse, fail or lie.
#include "objects/s3_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "base/result_matchers.h"
#include "base/temp_dir.h"
#include "objects/moto_server.h"
#include "objects/s3_bucket.h"
#include "objects/s3_upload.h"
#include "objects/test_server.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::FileSystem;
using testing::HasSubstr;

const S3Config kKnown = {.credentials = {.access_key = "AKIAKNOWN",
                                         .secret_key = "hush/secret",
                                         .session_token = "hush-token"},
                         .region = "eu-west-1"};

Settings Quick() { return {.connect_seconds = 5, .stall_seconds = 20, .retry_seconds = 20}; }

std::unique_ptr<ObjectStore> StoreAt(const std::string& endpoint, S3Config config = kKnown,
                                     const Settings& settings = Quick()) {
  config.endpoint = endpoint;
  auto bucket = S3Bucket::Make("s3://bucket/pre fix", settings, std::move(config));
  EXPECT_OK(bucket);
  return bucket ? OpenS3(*std::move(bucket), settings) : nullptr;
}

std::string ErrorXml(std::string_view code, std::string_view message = "text",
                     std::string_view more = "") {
  return fmt::format("<?xml version=\"1.0\"?><Error><Code>{}</Code><Message>{}</Message>{}</Error>",
                     code, message, more);
}

// A file of that size in a directory of its own.
class TestFile {
 public:
  explicit TestFile(std::size_t size) {
    auto file = FileSystem::Posix().Open(directory_ / "file", base::OpenMode::kCreate);
    EXPECT_OK(file);
    if (!file) return;
    file_ = *std::move(file);
    EXPECT_OK(file_->Allocate(size));
  }
  base::File& operator*() { return *file_; }

 private:
  base::TempDir directory_;
  std::unique_ptr<base::File> file_;
};

Url UrlOf(const S3Bucket& bucket, const std::string& key) {
  return bucket.MakeRequest("GET", key, {}, {}, "").url;
}

TEST(S3Bucket, Addresses) {
  S3Config config = kKnown;
  Settings settings;
  const auto url = [&](std::string_view store, const std::string& key) {
    const auto bucket = S3Bucket::Make(store, settings, config);
    EXPECT_OK(bucket);
    return bucket ? UrlOf(*bucket, key).ToRequest() : "";
  };
  EXPECT_EQ(url("s3://bucket/a b/", "c+d"),
            "https://bucket.s3.eu-west-1.amazonaws.com/a%20b/c%2Bd");
  EXPECT_EQ(url("s3://bucket", ""), "https://bucket.s3.eu-west-1.amazonaws.com/");
  // A certificate of AWS does not cover dots.
  EXPECT_EQ(url("s3://a.bucket", "c"), "https://s3.eu-west-1.amazonaws.com/a.bucket/c");
  settings.path_style = true;
  EXPECT_EQ(url("s3://bucket", "c"), "https://s3.eu-west-1.amazonaws.com/bucket/c");
  config.endpoint = "http://minio:9000/base/";
  EXPECT_EQ(url("s3://bucket", "c"), "http://minio:9000/base/bucket/c");
  settings.path_style = false;
  EXPECT_EQ(url("s3://bucket", "c"), "http://bucket.minio:9000/base/c");
  config.endpoint = "";
  config.region = "cn-north-1";
  EXPECT_EQ(url("s3://bucket", "c"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/c");
}

TEST(S3Bucket, UrlsThatAreNone) {
  for (const char* bad : {"s3://", "s3:///a", "s3://ab", "s3://hush:hush@bucket/a",
                          "s3://bucket:1/a", "s3://bucket/a?hush", "s3://bucket/a#hush",
                          "s3://bucket//a", "s3://bucket/../a", "s3://buc ket/a"}) {
    const auto bucket = S3Bucket::Make(bad, {}, kKnown);
    ASSERT_FALSE(bucket.has_value()) << bad;
    EXPECT_EQ(bucket.error().code, Code::kInvalidArgument);
    EXPECT_EQ(bucket.error().message.find("hush"), std::string::npos) << bucket.error().message;
  }
  for (const char* bad :
       {"minio:9000", "ftp://minio", "http://me:hush@minio", "http://minio?hush"}) {
    S3Config config = kKnown;
    config.endpoint = bad;
    const auto bucket = S3Bucket::Make("s3://bucket", {}, config);
    ASSERT_FALSE(bucket.has_value()) << bad;
    EXPECT_THAT(bucket.error().message, HasSubstr("S3 endpoint"));
    EXPECT_EQ(bucket.error().message.find("hush"), std::string::npos) << bucket.error().message;
  }
  S3Config config = kKnown;
  config.region = "a b\r\nx: y";
  EXPECT_ERROR(S3Bucket::Make("s3://bucket", {}, config), Code::kInvalidArgument, "region");
}

TEST(S3Store, Requests) {
  TestServer server([](const TestRequest& request, TestConnection& connection) {
    if (request.method == "GET") return void(connection.Reply(200, "", "text"));
    connection.Reply(200, "", "");
  });
  const auto store = StoreAt(server.url());
  EXPECT_EQ(store->url(), "s3://bucket/pre fix");
  EXPECT_OK(store->ReadText("a b", 10, nullptr));
  EXPECT_OK(store->PutText("a b", "content", true, nullptr));
  EXPECT_OK(store->Remove("a b", nullptr));
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3);
  for (const TestRequest& request : requests) {
    EXPECT_EQ(request.target, "/bucket/pre%20fix/a%20b");
    EXPECT_THAT(request.Header("authorization"), HasSubstr("AKIAKNOWN/"));
    EXPECT_EQ(request.Header("x-amz-security-token"), "hush-token");
  }
  EXPECT_EQ(requests[1].Header("if-none-match"), "*");
  EXPECT_EQ(requests[1].Header("x-amz-content-sha256"), Sha256Hex("content"));
  EXPECT_EQ(requests[1].body, "content");
  EXPECT_EQ(requests[2].method, "DELETE");
}

TEST(S3Store, WithoutCredentialsNothingIsSigned) {
  TestServer server(
      [](const TestRequest&, TestConnection& connection) { connection.Reply(200, "", "text"); });
  const auto store = StoreAt(server.url(), {.region = "us-east-1"});
  EXPECT_OK(store->ReadText("a", 10, nullptr));
  EXPECT_EQ(server.requests().at(0).Header("authorization"), "");
  EXPECT_EQ(server.requests().at(0).Header("x-amz-date"), "");
}

TEST(S3Store, AnonymousAtARealServer) {
  MotoServer* server = MotoServer::Shared();
  ASSERT_NE(server, nullptr);
  const std::string url = "s3://" + server->MakeBucket();
  const auto owner = Open(FileSystem::Posix(), url, server->settings());
  ASSERT_OK(owner);
  ASSERT_OK((*owner)->PutText("object", "text", false, nullptr));
  S3Config nobody{.region = "us-east-1", .endpoint = server->url()};
  auto bucket = S3Bucket::Make(url, server->settings(), nobody);
  ASSERT_OK(bucket);
  const auto store = OpenS3(*std::move(bucket), server->settings());
  EXPECT_ERROR(store->ReadText("object", 10, nullptr), Code::kPermissionDenied, url + "/object");
}

TEST(S3Store, NoSuchBucket) {
  MotoServer* server = MotoServer::Shared();
  ASSERT_NE(server, nullptr);
  const auto store = Open(FileSystem::Posix(), "s3://nowhere-at-all/x", server->settings());
  ASSERT_OK(store);
  EXPECT_ERROR((*store)->List("", false, nullptr), Code::kNotFound, "NoSuchBucket");
  EXPECT_ERROR((*store)->PutText("a", "", true, nullptr), Code::kNotFound, "NoSuchBucket");
}

TEST(S3Store, WaitsWhileItIsTooMuch) {
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    const int call = calls++;
    if (call == 0) return void(connection.Reply(503, "", ErrorXml("SlowDown")));
    if (call == 1) return void(connection.Reply(400, "", ErrorXml("RequestTimeout")));
    connection.Reply(200, "", request.method == "GET" ? "text" : "");
  });
  const auto store = StoreAt(server.url());
  EXPECT_EQ(store->ReadText("a", 10, nullptr).value_or(""), "text");
  EXPECT_EQ(calls, 3);
}

TEST(S3Store, RefusalsAreShown) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(403, "",
                     ErrorXml("AccessDenied",
                              "AKIAKNOWN may not\nuse hush-token, hush-token or "
                              "hush/secret"));
  });
  const auto store = StoreAt(server.url());
  const auto text = store->ReadText("a", 10, nullptr);
  EXPECT_ERROR(text, Code::kPermissionDenied,
               "GET s3://bucket/pre fix/a: the server answers 403, AccessDenied: *** may not use "
               "***, *** or ***");
}

TEST(S3Store, RefusalsThatAreNoXml) {
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(404, "", "<html>no such page");
  });
  const auto store = StoreAt(server.url());
  EXPECT_ERROR(store->ReadText("a", 10, nullptr), Code::kNotFound, "the server answers 404");
  EXPECT_ERROR(store->List("", false, nullptr), Code::kNotFound, "s3://bucket/pre fix (list)");
}

TEST(S3Store, AnotherRegion) {
  int kind = 0;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    if (kind == 0) {
      connection.Reply(301, "x-amz-bucket-region: us-west-2\r\n", ErrorXml("PermanentRedirect"));
    } else {
      connection.Reply(
          400, "",
          ErrorXml("AuthorizationHeaderMalformed", "expecting", "<Region>us-west-2</Region>"));
    }
  });
  const auto store = StoreAt(server.url());
  for (kind = 0; kind < 2; ++kind) {
    EXPECT_ERROR(store->ReadText("a", 10, nullptr), Code::kInvalidArgument,
                 "the bucket is in the region us-west-2, not in eu-west-1: set "
                 "AWS_REGION=us-west-2");
  }
  kind = 0;
  EXPECT_ERROR(store->Stat("a", nullptr), Code::kInvalidArgument, "AWS_REGION=us-west-2");
}

TEST(S3Store, ServersWithoutConditionalWrites) {
  TestServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.Header("if-none-match").empty()) return void(connection.Reply(200, "", ""));
    connection.Reply(501, "", ErrorXml("NotImplemented", "A header you provided"));
  });
  const auto store = StoreAt(server.url());
  EXPECT_ERROR(store->PutText("a", "text", true, nullptr), Code::kIncompatible,
               "NotImplemented: A header you provided; the server does not support PUT with "
               "If-None-Match");
  EXPECT_EQ(server.requests().size(), 1);  // no other way is tried
}

TEST(S3Store, ConflictsAreTriedAgain) {
  std::atomic<int> calls = 0;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    if (calls++ > 0) return void(connection.Reply(412, "", ErrorXml("PreconditionFailed")));
    connection.Reply(409, "", ErrorXml("ConditionalRequestConflict"));
  });
  const auto store = StoreAt(server.url());
  EXPECT_ERROR(store->PutText("a", "text", true, nullptr), Code::kAlreadyExists,
               "s3://bucket/pre fix/a is there already");
  EXPECT_EQ(calls, 2);
}

// The server carries out a PUT, but its reply is lost.
class ForgetfulServer {
 public:
  explicit ForgetfulServer(std::string other = "")
      : content_(std::move(other)), server_([this](const auto& request, auto& connection) {
          const std::scoped_lock lock(mutex_);
          if (request.method == "GET") return void(connection.Reply(200, "", *content_));
          if (!first_) return void(connection.Reply(412, "", ErrorXml("PreconditionFailed")));
          first_ = false;
          if (content_->empty()) content_ = request.body;
          connection.Close();
        }) {}
  std::string url() const { return server_.url(); }

 private:
  std::mutex mutex_;
  bool first_ = true;
  std::optional<std::string> content_;
  TestServer server_;
};

TEST(S3Store, OurOwnWriteIsNoConflict) {
  ForgetfulServer server;
  const auto store = StoreAt(server.url());
  EXPECT_OK(store->ReadText("a", 10, nullptr));  // a connection is open now
  EXPECT_OK(store->PutText("a", "mine", true, nullptr));
}

TEST(S3Store, AnothersWriteIsOne) {
  for (const char* mine : {"mine", ""}) {
    ForgetfulServer server("another's");
    EXPECT_ERROR(StoreAt(server.url())->PutText("a", mine, true, nullptr), Code::kAlreadyExists,
                 "/a is there already");
  }
}

TEST(S3Store, ListsThatLie) {
  std::string page;
  TestServer server([&](const TestRequest&, TestConnection& connection) {
    connection.Reply(200, "", "<ListBucketResult>" + page + "</ListBucketResult>");
  });
  const auto store = StoreAt(server.url());
  page = "<Contents><Key>elsewhere/a</Key><Size>1</Size></Contents>";
  EXPECT_ERROR(store->List("", false, nullptr), Code::kCorrupt, "lists 'elsewhere/a'");
  page = "<CommonPrefixes><Prefix>elsewhere/</Prefix></CommonPrefixes>";
  EXPECT_ERROR(store->List("", true, nullptr), Code::kCorrupt, "lists 'elsewhere/'");
  page = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>";
  EXPECT_ERROR(store->List("", false, nullptr), Code::kCorrupt, "the same page again");
  page = "<Contents>";
  EXPECT_ERROR(store->List("", false, nullptr), Code::kCorrupt, "not well-formed XML");
  // What is no name of ours is none of our objects.
  page =
      "<Contents><Key>pre fix/../a</Key><Size>1</Size></Contents>"
      "<Contents><Key>pre fix/folder/</Key><Size>0</Size></Contents>"
      "<Contents><Key>pre fix/</Key><Size>0</Size></Contents>"
      "<Contents><Key>pre fix/good</Key><Size>1</Size></Contents>";
  ASSERT_OK_AND_ASSIGN(const auto listed, store->List("", false, nullptr));
  ASSERT_EQ(listed.size(), 1);
  EXPECT_EQ(listed[0].key, "good");
}

TEST(S3Upload, PartsAreEnough) {
  EXPECT_EQ(PartBytes(0), 8 << 20);
  EXPECT_EQ(PartBytes(83'886'080'000), 8 << 20);
  EXPECT_EQ(PartBytes(83'886'080'001), 9 << 20);
  for (const std::uint64_t bytes : {1ULL << 30, 123'456'789'012ULL, 5ULL << 40}) {
    const std::uint64_t part = PartBytes(bytes);
    EXPECT_LE((bytes + part - 1) / part, kMaxParts);
    EXPECT_LE(part, 5ULL << 30);
  }
}

// Takes multipart uploads; `fault` may answer instead.
class UploadServer {
 public:
  using Fault = std::function<bool(const TestRequest&, TestConnection&)>;

  explicit UploadServer(Fault fault, const TestCertificate* certificate = nullptr)
      : fault_(std::move(fault)),
        server_([this](const auto& request, auto& connection) { Answer(request, connection); },
                certificate) {}

  TestServer& server() { return server_; }
  // How many requests there were with that method and part of a target.
  int Count(const std::string& method, std::string_view part) {
    int count = 0;
    for (const TestRequest& request : server_.requests()) {
      count += request.method == method && request.target.find(part) != std::string::npos ? 1 : 0;
    }
    return count;
  }

 private:
  void Answer(const TestRequest& request, TestConnection& connection) {
    if (fault_(request, connection)) return;
    if (request.target.ends_with("?uploads=")) {
      connection.Reply(200, "",
                       "<InitiateMultipartUploadResult><UploadId>u/1&amp;</UploadId>"
                       "</InitiateMultipartUploadResult>");
    } else if (request.method == "POST") {
      connection.Reply(200, "", "<CompleteMultipartUploadResult/>");
    } else if (request.method == "DELETE") {
      connection.Send("HTTP/1.1 204 No Content\r\n\r\n");
    } else {
      connection.Reply(200, fmt::format("ETag: \"{}\"\r\n", request.body.size()), "");
    }
  }

  Fault fault_;
  TestServer server_;
};

constexpr std::size_t kTwoParts = (8 << 20) + 1000;

TEST(S3Upload, InParts) {
  UploadServer server([](const auto&, auto&) { return false; });
  TestFile file(kTwoParts);
  ASSERT_OK(StoreAt(server.server().url())->Put("a", *file, nullptr, nullptr));
  const auto requests = server.server().requests();
  ASSERT_EQ(requests.size(), 4);
  EXPECT_EQ(requests[1].target, "/bucket/pre%20fix/a?partNumber=1&uploadId=u%2F1%26");
  EXPECT_EQ(requests[1].Header("x-amz-content-sha256"), Sha256Hex(std::string(8 << 20, '\0')));
  EXPECT_THAT(requests[3].body,
              HasSubstr("<PartNumber>2</PartNumber><ETag>&quot;1000&quot;</ETag>"));
  EXPECT_EQ(server.Count("DELETE", ""), 0);
}

// For a server with TLS.
class Tls {
 public:
  Tls() {
    settings_.ca_file = directory_ / "ca.pem";
    EXPECT_OK(base::WriteTextAtomically(FileSystem::Posix(), settings_.ca_file,
                                        certificate_.authority_pem(), false));
  }
  const TestCertificate* certificate() const { return &certificate_; }
  const Settings& settings() const { return settings_; }

 private:
  base::TempDir directory_;
  TestCertificate certificate_;
  Settings settings_ = Quick();
};

TEST(S3Upload, OverTlsTheBodyIsNotHashed) {
  const Tls tls;
  UploadServer server([](const auto&, auto&) { return false; }, tls.certificate());
  TestFile file(1000);
  const auto store = StoreAt(server.server().url(), kKnown, tls.settings());
  ASSERT_OK(store->Put("a", *file, nullptr, nullptr));
  ASSERT_OK(store->PutText("a", "text", false, nullptr));
  EXPECT_EQ(server.server().requests().at(0).Header("x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_EQ(server.server().requests().at(1).Header("x-amz-content-sha256"), Sha256Hex("text"));
}

TEST(S3Upload, APartIsSentAgain) {
  std::atomic<int> calls = 0;
  UploadServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.target.find("partNumber=1") == std::string::npos || calls++ >= 2) return false;
    connection.Close();
    return true;
  });
  TestFile file(kTwoParts);
  std::uint64_t sent = 0;
  const auto listener = [&](std::uint64_t more) {
    EXPECT_LE(more, kTwoParts);
    sent += more;
  };
  ASSERT_OK(StoreAt(server.server().url())->Put("a", *file, listener, nullptr));
  EXPECT_EQ(sent, kTwoParts);  // no byte counts twice
  EXPECT_GE(server.Count("PUT", "partNumber=1"), 3);
  EXPECT_EQ(server.Count("PUT", "partNumber=2"), 1);
}

TEST(S3Upload, AbortedWhenAPartFails) {
  UploadServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.target.find("partNumber=2") == std::string::npos) return false;
    connection.Reply(403, "", ErrorXml("AccessDenied"));
    return true;
  });
  TestFile file(kTwoParts);
  EXPECT_ERROR(StoreAt(server.server().url())->Put("a", *file, nullptr, nullptr),
               Code::kPermissionDenied, "AccessDenied");
  EXPECT_EQ(server.Count("DELETE", "uploadId=u%2F1%26"), 1);
  EXPECT_EQ(server.Count("POST", "uploadId="), 0);
}

TEST(S3Upload, AbortedWhenCancelled) {
  CancelToken cancel;
  UploadServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.target.find("partNumber=2") == std::string::npos) return false;
    cancel.Cancel();
    connection.Stall();
    return true;
  });
  TestFile file(kTwoParts);
  EXPECT_ERROR(StoreAt(server.server().url())->Put("a", *file, nullptr, &cancel), Code::kCancelled,
               "cancelled");
  EXPECT_EQ(server.Count("DELETE", "uploadId="), 1);
}

TEST(S3Upload, APartWithoutATag) {
  UploadServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.method != "PUT") return false;
    return connection.Reply(200, "", "");
  });
  TestFile file(kTwoParts);
  EXPECT_ERROR(StoreAt(server.server().url())->Put("a", *file, nullptr, nullptr), Code::kCorrupt,
               "no ETag to part 1");
  EXPECT_EQ(server.Count("DELETE", "uploadId="), 1);
}

TEST(S3Upload, FailuresWithStatus200) {
  std::atomic<int> calls = 0;
  UploadServer server([&](const TestRequest& request, TestConnection& connection) {
    if (request.method != "POST" || request.target.ends_with("?uploads=")) return false;
    return connection.Reply(200, "", ErrorXml(calls++ == 0 ? "InternalError" : "InvalidPart"));
  });
  TestFile file(kTwoParts);
  EXPECT_ERROR(StoreAt(server.server().url())->Put("a", *file, nullptr, nullptr),
               Code::kIncompatible, "InvalidPart");
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(server.Count("DELETE", "uploadId="), 1);
}

TEST(S3Upload, CompletedThoughTheReplyWasLost) {
  for (const bool ours : {true, false}) {
    std::atomic<int> calls = 0;
    UploadServer server([&](const TestRequest& request, TestConnection& connection) {
      if (request.method == "HEAD") {
        return connection.Send(
            fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: \"abc-2\"\r\n\r\n",
                        ours ? kTwoParts : 5));
      }
      if (request.method != "POST" || request.target.ends_with("?uploads=")) return false;
      if (calls++ == 0) {
        connection.Close();
        return true;
      }
      return connection.Reply(404, "", ErrorXml("NoSuchUpload"));
    });
    TestFile file(kTwoParts);
    const auto put = StoreAt(server.server().url())->Put("a", *file, nullptr, nullptr);
    if (ours) {
      EXPECT_OK(put);
    } else {
      EXPECT_ERROR(put, Code::kNotFound, "NoSuchUpload");
    }
  }
}

// Claims to be larger than it is.
class ShrinkingFile final : public base::File {
 public:
  explicit ShrinkingFile(base::File& inner) : inner_(inner) {}
  const std::string& path() const override { return inner_.path(); }
  base::Result<base::FileInfo> Stat() override {
    SYNCLINE_ASSIGN(base::FileInfo info, inner_.Stat());
    info.size += 1;
    return info;
  }
  base::Result<std::size_t> ReadAt(base::MutableByteSpan into, std::uint64_t offset) override {
    return inner_.ReadAt(into, offset);
  }
  base::Status WriteAt(base::ByteSpan, std::uint64_t) override { return {}; }
  base::Status Allocate(std::uint64_t) override { return {}; }
  base::Status Truncate(std::uint64_t) override { return {}; }
  base::Status Sync() override { return {}; }
  base::Result<base::Mapping> Map(bool writable) override { return inner_.Map(writable); }

 private:
  base::File& inner_;
};

TEST(S3Upload, AFileThatShrinks) {
  const Tls tls;
  UploadServer server([](const auto&, auto&) { return false; }, tls.certificate());
  TestFile file(kTwoParts);
  ShrinkingFile shrinking(*file);
  const auto store = StoreAt(server.server().url(), kKnown, tls.settings());
  EXPECT_ERROR(store->Put("a", shrinking, nullptr, nullptr), Code::kCorrupt, "/file is truncated");
  EXPECT_EQ(server.Count("DELETE", "uploadId="), 1);
}

// Writing to a connection that has ended raises a signal, unless one takes care.
TEST(S3Upload, TheConnectionEndsInsideABody) {
  const Tls tls;
  for (const TestCertificate* certificate :
       {tls.certificate(), static_cast<const TestCertificate*>(nullptr)}) {
    UploadServer server([](const auto&, auto&) { return false; }, certificate);
    TestFile file(kTwoParts);
    const auto store = StoreAt(server.server().url(), kKnown, tls.settings());
    server.server().DropBodies(2);
    ASSERT_OK(store->Put("a", *file, nullptr, nullptr));
    EXPECT_EQ(server.Count("PUT", "partNumber="), 2);
  }
}

}  // namespace
}  // namespace syncline::objects
