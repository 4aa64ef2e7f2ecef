// Signatures against AWS' own examples, and against botocore for what those do not have.
#include "objects/s3_sign.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <string.h>

#include <random>

#include "base/json.h"
#include "base/result_matchers.h"
#include "base/temp_dir.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::FileSystem;

const std::string* Find(const Request& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, "Examples:
// Signature calculations": all on 24 May 2013, 00:00:00 UTC.
constexpr std::time_t kExampleTime = 1369353600;
const Credentials kExample = {.access_key = "AKIAIOSFODNN7EXAMPLE",
                              .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};

std::string SignatureOf(Request request, std::string_view payload) {
  Sign(request, kExample, "us-east-1", Sha256Hex(payload), kExampleTime);
  const std::string* value = Find(request, "authorization");
  return value == nullptr ? "" : value->substr(value->rfind('=') + 1);
}

Request Example(std::string method, std::string_view target) {
  return {.method = std::move(method),
          .url = ParseUrl(fmt::format("https://examplebucket.s3.amazonaws.com{}", target)).value()};
}

TEST(S3Sign, ExamplesOfAws) {
  Request get = Example("GET", "/test.txt");
  get.headers = {{"Range", "bytes=0-9"}};
  EXPECT_EQ(SignatureOf(get, ""),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  Request put = Example("PUT", "/test%24file.text");
  put.headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                 {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  EXPECT_EQ(SignatureOf(put, "Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(SignatureOf(Example("GET", "?lifecycle"), ""),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(SignatureOf(Example("GET", "?prefix=J&max-keys=2"), ""),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(S3Sign, Headers) {
  Request request = Example("GET", "/a");
  Credentials credentials = kExample;
  credentials.session_token = "token";
  Sign(request, credentials, "eu-west-1", kUnsignedPayload, kExampleTime + 45296);
  EXPECT_EQ(*Find(request, "x-amz-date"), "20130524T123456Z");
  EXPECT_EQ(*Find(request, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_EQ(*Find(request, "x-amz-security-token"), "token");
  EXPECT_TRUE(Find(request, "authorization")
                  ->starts_with("AWS4-HMAC-SHA256 "
                                "Credential=AKIAIOSFODNN7EXAMPLE/20130524/eu-west-1/s3/"
                                "aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date;"
                                "x-amz-security-token, Signature="));
}

TEST(S3Sign, Hashes) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  base::TempDir directory;
  std::string text(3'000'000, 'x');
  text[2'500'000] = 'y';
  ASSERT_OK_AND_ASSIGN(const auto file,
                       FileSystem::Posix().Open(directory / "file", base::OpenMode::kCreate));
  ASSERT_OK(file->WriteAt(base::AsBytes(text), 0));
  EXPECT_EQ(Sha256HexOfFile(*file, 7, 2'900'000, nullptr).value_or(""),
            Sha256Hex(std::string_view(text).substr(7, 2'900'000)));
  EXPECT_ERROR(Sha256HexOfFile(*file, 7, 3'000'000, nullptr), Code::kCorrupt, "truncated");
}

// Signs each line of the file named with botocore and prints the signature.
constexpr char kBotocore[] = R"(
import json, sys
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
for line in open(sys.argv[1], encoding='utf-8'):
    case = json.loads(line)
    auth = S3SigV4Auth(Credentials(case['access'], case['secret']), 's3', case['region'])
    request = AWSRequest(method=case['method'], url=case['url'], headers=case['headers'])
    request.context['timestamp'] = case['headers']['x-amz-date']
    text = auth.string_to_sign(request, auth.canonical_request(request))
    print(auth.signature(text, request))
)";

TEST(S3Sign, AgreesWithBotocore) {
  std::mt19937 random(7);
  const auto text = [&](std::size_t at_most) {
    const std::string_view characters[] = {"a", "Z",  "0", " ", "+", "&", "=", "/", "%", "~",
                                           "é", "日", "-", "_", ".", "*", "'", "(", ":", "$"};
    std::string made;
    for (std::size_t n = random() % (at_most + 1); n > 0; --n) {
      made += characters[random() % std::size(characters)];
    }
    return made;
  };
  std::string cases;
  std::vector<std::string> ours;
  for (int i = 0; i < 200; ++i) {
    const char* methods[] = {"GET", "PUT", "POST", "DELETE", "HEAD"};
    Request request{.method = methods[random() % 5]};
    request.url = ParseUrl(i % 2 == 0 ? "http://127.0.0.1:5000" : "https://b.example.com").value();
    request.url.path = "/" + PercentEncode("k" + text(12), true);
    for (int n = i % 4; n > 0; --n) {
      request.url.query +=
          fmt::format("{}{}={}", request.url.query.empty() ? "" : "&",
                      PercentEncode("q" + text(3), false), PercentEncode(text(6), false));
    }
    if (i % 3 == 0) request.headers.emplace_back("If-Match", "\"a  b\"");
    const Credentials credentials = {.access_key = "AKI", .secret_key = "s" + text(20)};
    Sign(request, credentials, "eu-west-1", Sha256Hex(std::to_string(i)),
         1'000'000'000 + 86'399 * static_cast<std::time_t>(i));
    const std::string& signed_value = request.headers.back().second;
    ours.push_back(signed_value.substr(signed_value.rfind('=') + 1));
    request.headers.pop_back();
    base::Json::Object headers;
    for (const auto& [name, value] : request.headers) headers.emplace_back(name, value);
    cases += base::ToText(base::Json::Object{{"method", request.method},
                                             {"url", request.url.ToRequest()},
                                             {"access", credentials.access_key},
                                             {"secret", credentials.secret_key},
                                             {"region", "eu-west-1"},
                                             {"headers", headers}}) +
             "\n";
  }
  base::TempDir directory;
  FileSystem& files = FileSystem::Posix();
  ASSERT_OK(base::WriteTextAtomically(files, directory / "cases", cases, false));
  ASSERT_OK(base::WriteTextAtomically(files, directory / "sign.py", kBotocore, false));
  const std::string command = fmt::format("'{}' '{}' '{}'", SYNCLINE_TEST_PYTHON,
                                          directory / "sign.py", directory / "cases");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::vector<std::string> theirs;
  char line[256];
  while (fgets(line, sizeof(line), pipe) != nullptr) theirs.emplace_back(line, strcspn(line, "\n"));
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(ours, theirs);
}

}  // namespace
}  // namespace syncline::objects
