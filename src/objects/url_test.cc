#include "objects/url.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "objects/object_store.h"

namespace syncline::objects {
namespace {

using base::Code;

TEST(Url, Parts) {
  ASSERT_OK_AND_ASSIGN(const Url url,
                       ParseUrl("HTTPS://me:p%40ss:word@Example.COM:8443/a%20b/c?x=1&y#part"));
  EXPECT_EQ(url.scheme, "https");
  EXPECT_EQ(url.user, "me");
  EXPECT_EQ(url.password, "p@ss:word");
  EXPECT_EQ(url.host, "example.com");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.path, "/a%20b/c");
  EXPECT_EQ(url.query, "x=1&y");
  EXPECT_EQ(url.Shown(), "https://example.com:8443/a%20b/c");
  EXPECT_EQ(url.ToRequest(), "https://example.com:8443/a%20b/c?x=1&y");
}

TEST(Url, ShortOnes) {
  ASSERT_OK_AND_ASSIGN(const Url url, ParseUrl("http://host"));
  EXPECT_EQ(url.EffectivePort(), 80);
  EXPECT_EQ(url.Shown(), "http://host");
  EXPECT_EQ(url.ToRequest(), "http://host/");
  ASSERT_OK_AND_ASSIGN(const Url six, ParseUrl("https://[::1]:443?q"));
  EXPECT_EQ(six.host, "[::1]");
  EXPECT_EQ(six.Authority(), "[::1]");  // 443 goes without saying
  EXPECT_EQ(six.ToRequest(), "https://[::1]/?q");
}

TEST(Url, Origins) {
  const Url url = ParseUrl("https://host/a").value();
  EXPECT_TRUE(url.SameOrigin(ParseUrl("https://HOST:443/b").value()));
  EXPECT_FALSE(url.SameOrigin(ParseUrl("https://host:444/a").value()));
  EXPECT_FALSE(url.SameOrigin(ParseUrl("http://host:443/a").value()));
  EXPECT_FALSE(url.SameOrigin(ParseUrl("https://host2/a").value()));
}

TEST(Url, WhatIsNone) {
  for (const char* bad : {"",
                          "host/path",
                          "://host",
                          "1http://host",
                          "http://",
                          "http:///path",
                          "http://:80/",
                          "http://user@/",
                          "http://host:0/",
                          "http://host:65536/",
                          "http://host:8o/",
                          "http://ho st/",
                          "http://host/a b",
                          "http://host/a\r\nX: y",
                          "http://host?a b",
                          "http://[::1/",
                          "http://[]/",
                          "http://%zz@host/",
                          "http://ho%20st/",
                          "http://host\x7f/"}) {
    EXPECT_ERROR(ParseUrl(bad), Code::kInvalidArgument, "URL");
  }
}

TEST(Url, NoSecretInAnError) {
  for (const char* bad :
       {"http://me:hush@host:0/?hush#hush", "http://me:hush@/", "http://me:hu/sh@host:0/a",
        "http://me:hush%zz@host/", "http://me:hush?x@host/", "http://me:hush#x@host/",
        "://me:hush@host?hush", "http://a:hush@b:hush@host:x/"}) {
    const auto parsed = ParseUrl(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().message.find("hush"), std::string::npos) << parsed.error().message;
    EXPECT_EQ(parsed.error().message.find("hu/sh"), std::string::npos) << parsed.error().message;
  }
}

TEST(Url, Redacts) {
  EXPECT_EQ(Redact("https://me:secret@host/a?token#x"), "https://host/a");
  EXPECT_EQ(Redact("https://host/a@b"), "https://b");  // rather too little
  EXPECT_EQ(Redact("/plain/path"), "/plain/path");
}

RC_GTEST_PROP(Url, EncodedTextComesBack, (const std::string& text, bool keep_slash)) {
  const std::string encoded = PercentEncode(text, keep_slash);
  for (const char c : encoded) {
    RC_ASSERT(std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' ||
              c == '~' || c == '%' || (keep_slash && c == '/'));
  }
  RC_ASSERT(PercentDecode(encoded).value() == text);
}

TEST(Url, Encodes) {
  EXPECT_EQ(PercentEncode("a/b c+d~é", true), "a/b%20c%2Bd~%C3%A9");
  EXPECT_EQ(PercentEncode("a/b", false), "a%2Fb");
  for (const char* bad : {"%", "%4", "a%4x", "%x4"}) {
    EXPECT_ERROR(PercentDecode(bad), Code::kInvalidArgument, "'%'");
  }
}

TEST(Open, IsRemote) {
  EXPECT_TRUE(IsRemote("http://host/a"));
  EXPECT_TRUE(IsRemote("S3://bucket"));
  EXPECT_TRUE(IsRemote("other://x"));
  EXPECT_FALSE(IsRemote("/path"));
  EXPECT_FALSE(IsRemote(""));
  EXPECT_FALSE(IsRemote("FILE:///path"));
  EXPECT_FALSE(IsRemote("./a://b"));
}

TEST(Open, Directories) {
  base::FileSystem& files = base::FileSystem::Posix();
  const std::pair<const char*, const char*> cases[] = {
      {"/a/b", "/a/b"}, {"a b", "a b"}, {"file:///a%20b", "/a b"}, {"file://localhost/a", "/a"}};
  for (const auto& [url, path] : cases) {
    ASSERT_OK_AND_ASSIGN(const auto store, Open(files, url, {}));
    EXPECT_EQ(store->local_path(), path);
    EXPECT_EQ(store->url(), url);
  }
  for (const char* bad :
       {"", "file://host/a", "file://", "file://a", "file:///%zz", "file:///%00"}) {
    EXPECT_ERROR(Open(files, bad, {}), Code::kInvalidArgument, "");
  }
}

TEST(Open, UnknownSchemes) {
  EXPECT_ERROR(Open(base::FileSystem::Posix(), "ftp://me:hush@host/a?hush", {}),
               Code::kInvalidArgument, "ftp://host/a: a store is");
}

}  // namespace
}  // namespace syncline::objects
