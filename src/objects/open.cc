#include <fmt/format.h>

#include "objects/directory_store.h"
#include "objects/http_store.h"
#include "objects/object_store.h"
#include "objects/s3_config.h"
#include "objects/s3_store.h"
#include "objects/url.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::Result;

// "file:///a%20b" is "/a b"; a host can only be this one.
Result<std::string> PathOfFileUrl(std::string_view url) {
  std::string_view rest = url.substr(url.find("://") + 3);
  if (rest.starts_with("localhost/")) rest.remove_prefix(9);
  const auto path = PercentDecode(rest);
  if (rest.starts_with('/') && path && path->find('\0') == std::string::npos) return *path;
  return Fail(Code::kInvalidArgument,
              fmt::format("{}: expected file:///path, percent-encoded", Redact(url)));
}

}  // namespace

bool IsRemote(std::string_view url) {
  const std::string scheme = SchemeOf(url);
  return !scheme.empty() && scheme != "file";
}

Result<std::unique_ptr<ObjectStore>> Open(base::FileSystem& files, std::string_view url,
                                          const Settings& settings) {
  const std::string scheme = SchemeOf(url);
  if (url.empty()) return Fail(Code::kInvalidArgument, "a store needs a URL or a path");
  if (scheme.empty()) return OpenDirectory(files, std::string(url), std::string(url));
  if (scheme == "file") {
    SYNCLINE_ASSIGN(std::string path, PathOfFileUrl(url));
    return OpenDirectory(files, std::string(url), std::move(path));
  }
  if (scheme == "http" || scheme == "https") {
    SYNCLINE_ASSIGN(Url parsed, ParseUrl(url));
    return OpenHttp(std::move(parsed), settings);
  }
  if (scheme == "s3") {
    SYNCLINE_ASSIGN(S3Config config, LoadS3Config(files, ProcessEnvironment(), settings));
    SYNCLINE_ASSIGN(S3Bucket bucket, S3Bucket::Make(url, settings, std::move(config)));
    return OpenS3(std::move(bucket), settings);
  }
  return Fail(
      Code::kInvalidArgument,
      fmt::format("{}: a store is a directory, file://, http://, https:// or s3://", Redact(url)));
}

}  // namespace syncline::objects
