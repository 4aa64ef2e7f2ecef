#include "objects/s3_replies.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/result_matchers.h"
#include "objects/xml.h"

namespace syncline::objects {
namespace {

using base::Code;
using testing::ElementsAre;

TEST(Xml, ElementsAndText) {
  ASSERT_OK_AND_ASSIGN(const XmlElement root,
                       ParseXml("\xef\xbb\xbf <?xml version='1.0'?>\n<!-- a < b -->\n"
                                "<a:root xmlns:a=\"http://x/\" b = '>'>\n <one> text </one>"
                                "<two/><two x='1' />\n<three><![CDATA[<&>]]>&amp;</three></a:root>"
                                " <!-- end -->\n"));
  EXPECT_EQ(root.name, "root");
  EXPECT_EQ(root.text, "");
  ASSERT_EQ(root.children.size(), 4);
  EXPECT_EQ(root.ChildText("one"), " text ");
  EXPECT_EQ(root.ChildText("two"), "");
  EXPECT_EQ(root.ChildText("three"), "<&>&");
  EXPECT_EQ(root.Child("four"), nullptr);
}

TEST(Xml, References) {
  ASSERT_OK_AND_ASSIGN(
      const XmlElement root,
      ParseXml("<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x42;&#233;&#x20AC;&#x1F600;</a>"));
  EXPECT_EQ(root.text, "<>&\"'ABé€😀");
}

TEST(Xml, WhatIsNotWellFormed) {
  for (const char* bad : {"",
                          "text",
                          "<a>",
                          "<a",
                          "<a b>",
                          "<a b=c></a>",
                          "<a b='1></a>",
                          "<a></b>",
                          "<a></a",
                          "<a></a><b/>",
                          "<a></a>text",
                          "<a>&none;</a>",
                          "<a>&</a>",
                          "<a>&#0;</a>",
                          "<a>&#xD800;</a>",
                          "<a>&#x110000;</a>",
                          "<a>&#;</a>",
                          "<a>&#99999999999;</a>",
                          "<a><!-- </a>",
                          "<a><![CDATA[</a>",
                          "<!DOCTYPE a><a/>",
                          "<a><!DOCTYPE b></a>",
                          "<?xml",
                          "<a/ >",
                          "< a/>"}) {
    EXPECT_ERROR(ParseXml(bad), Code::kCorrupt, "not well-formed XML at offset");
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  EXPECT_ERROR(ParseXml(deep), Code::kCorrupt, "nested too deeply");
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "<b/>";
  EXPECT_ERROR(ParseXml("<a>" + many + "</a>"), Code::kCorrupt, "too many elements");
}

RC_GTEST_PROP(Xml, EscapedTextComesBack, (const std::string& text)) {
  RC_ASSERT(ParseXml("<a>" + EscapeXml(text) + "</a>").value().text == text);
}

RC_GTEST_PROP(Xml, NeverFallsOver, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::element('<', '>', '/', 'a', 'b', '&', ';', '#', '!', '-', '[', '?', '"', '=', ' '));
  (void)ParseXml(text);
  (void)ParseXml("<a>" + text + "</a>");
}

constexpr char kPage[] = R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix>
<IsTruncated>true</IsTruncated><NextContinuationToken>1&amp;2==</NextContinuationToken>
<Contents><Key>p/a&amp;b</Key>
<LastModified>x</LastModified><ETag>&quot;t1&quot;</ETag><Size>5</Size>
<Owner><ID>o</ID></Owner></Contents>
<Contents><Key>p/c+%20</Key><Size>18446744073709551615</Size></Contents>
<CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes>
<CommonPrefixes><Prefix>p/e+/</Prefix></CommonPrefixes></ListBucketResult>)";

TEST(S3Replies, ListPage) {
  ASSERT_OK_AND_ASSIGN(ListPage page, ParseListPage(kPage));
  ASSERT_EQ(page.objects.size(), 2);
  EXPECT_EQ(page.objects[0].key, "p/a&b");
  EXPECT_EQ(page.objects[0].bytes, 5);
  EXPECT_EQ(page.objects[0].tag, "\"t1\"");
  EXPECT_EQ(page.objects[1].key, "p/c+%20");
  EXPECT_EQ(page.objects[1].bytes, ~0ULL);
  EXPECT_THAT(page.folders, ElementsAre("p/d/", "p/e+/"));
  EXPECT_EQ(page.next, "1&2==");
  std::string encoded = kPage;
  encoded.insert(encoded.find("<IsTruncated>"), "<EncodingType>url</EncodingType>");
  ASSERT_OK_AND_ASSIGN(page, ParseListPage(encoded));
  EXPECT_EQ(page.objects[1].key, "p/c  ");
  EXPECT_THAT(page.folders, ElementsAre("p/d/", "p/e /"));
}

TEST(S3Replies, PagesThatAreNone) {
  const std::pair<const char*, const char*> cases[] = {
      {"<Error/>", "expected ListBucketResult, got Error"},
      {"<html><body/></html>", "expected ListBucketResult, got html"},
      {"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>", "size ''"},
      {"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
       "size '-1'"},
      {"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>", "object ''"},
      {"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "without a token"},
      {"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%</Key><Size>1</Size>"
       "</Contents></ListBucketResult>",
       "'%'"},
  };
  for (const auto& [xml, message] : cases) {
    const auto page = ParseListPage(xml);
    ASSERT_FALSE(page.has_value()) << xml;
    EXPECT_THAT(page.error().message, testing::HasSubstr(message));
  }
}

TEST(S3Replies, Uploads) {
  EXPECT_EQ(ParseUploadId("<InitiateMultipartUploadResult><UploadId>x&amp;y</UploadId>"
                          "</InitiateMultipartUploadResult>")
                .value_or(""),
            "x&y");
  EXPECT_ERROR(ParseUploadId("<InitiateMultipartUploadResult/>"), Code::kCorrupt, "no UploadId");
  EXPECT_EQ(CompleteUploadBody({"\"a\"", "<b>"}),
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag>"
            "</Part><Part><PartNumber>2</PartNumber><ETag>&lt;b&gt;</ETag></Part>"
            "</CompleteMultipartUpload>");
  ASSERT_OK_AND_ASSIGN(auto error, ParseCompleteUpload("<CompleteMultipartUploadResult/>"));
  EXPECT_FALSE(error);
  // Blanks may come before, while the server works (and after the status 200).
  ASSERT_OK_AND_ASSIGN(error, ParseCompleteUpload("\n \n<?xml version='1.0'?><Error><Code>SlowDown"
                                                  "</Code><Message>m</Message></Error>"));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "SlowDown");
  EXPECT_ERROR(ParseCompleteUpload("<a/>"), Code::kCorrupt, "got a");
}

TEST(S3Replies, Errors) {
  const auto error = ParseS3Error(
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting"
      "</Message><Region>eu-west-1</Region></Error>");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "AuthorizationHeaderMalformed");
  EXPECT_EQ(error->region, "eu-west-1");
  EXPECT_FALSE(ParseS3Error("<html/>"));
  EXPECT_FALSE(ParseS3Error(""));
}

}  // namespace
}  // namespace syncline::objects
