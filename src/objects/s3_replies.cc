#include "objects/s3_replies.h"

#include <fmt/format.h>

#include <charconv>

#include "objects/url.h"
#include "objects/xml.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::Result;

Result<XmlElement> ParseRoot(std::string_view xml, std::string_view name) {
  SYNCLINE_ASSIGN(XmlElement root, ParseXml(xml));
  if (root.name == name) return root;
  return Fail(Code::kCorrupt, fmt::format("expected {}, got {}", name, root.name));
}

// With encoding-type=url: as in a form, '+' is a blank.
Result<std::string> DecodeKey(std::string key, bool encoded) {
  if (!encoded) return key;
  for (char& c : key) {
    if (c == '+') c = ' ';
  }
  return PercentDecode(key);
}

S3Error ErrorOf(const XmlElement& root) {
  return {.code = root.ChildText("Code"),
          .message = root.ChildText("Message"),
          .region = root.ChildText("Region")};
}

}  // namespace

Result<ListPage> ParseListPage(std::string_view xml) {
  SYNCLINE_ASSIGN(const XmlElement root, ParseRoot(xml, "ListBucketResult"));
  const bool encoded = root.ChildText("EncodingType") == "url";
  ListPage page;
  for (const XmlElement& child : root.children) {
    if (child.name == "Contents") {
      ObjectInfo object;
      SYNCLINE_ASSIGN(object.key, DecodeKey(child.ChildText("Key"), encoded));
      object.tag = child.ChildText("ETag");
      const std::string size = child.ChildText("Size");
      const char* end = size.data() + size.size();
      const auto [rest, error] = std::from_chars(size.data(), end, object.bytes);
      if (object.key.empty() || error != std::errc() || rest != end) {
        return Fail(Code::kCorrupt, fmt::format("object '{}' has size '{}'", object.key, size));
      }
      page.objects.push_back(std::move(object));
    } else if (child.name == "CommonPrefixes") {
      SYNCLINE_ASSIGN(std::string folder, DecodeKey(child.ChildText("Prefix"), encoded));
      page.folders.push_back(std::move(folder));
    }
  }
  if (root.ChildText("IsTruncated") == "true") {
    page.next = root.ChildText("NextContinuationToken");
    if (page.next.empty()) return Fail(Code::kCorrupt, "truncated, without a token to go on");
  }
  return page;
}

Result<std::string> ParseUploadId(std::string_view xml) {
  SYNCLINE_ASSIGN(const XmlElement root, ParseRoot(xml, "InitiateMultipartUploadResult"));
  std::string id = root.ChildText("UploadId");
  if (id.empty()) return Fail(Code::kCorrupt, "no UploadId");
  return id;
}

std::optional<S3Error> ParseS3Error(std::string_view xml) {
  const auto root = ParseXml(xml);
  if (!root || root->name != "Error") return std::nullopt;
  return ErrorOf(*root);
}

std::string CompleteUploadBody(const std::vector<std::string>& tags) {
  std::string body = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < tags.size(); ++i) {
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1,
                        EscapeXml(tags[i]));
  }
  return body + "</CompleteMultipartUpload>";
}

Result<std::optional<S3Error>> ParseCompleteUpload(std::string_view xml) {
  SYNCLINE_ASSIGN(const XmlElement root, ParseXml(xml));
  if (root.name == "CompleteMultipartUploadResult") return std::nullopt;
  if (root.name == "Error") return ErrorOf(root);
  return Fail(Code::kCorrupt, "expected CompleteMultipartUploadResult, got " + root.name);
}

}  // namespace syncline::objects
