#include <fmt/format.h>

#include "objects/directory_store.h"
#include "objects/http_store.h"
#include "objects/object_store.h"
#include "objects/s3_config.h"
#include "objects/s3_store.h"
#include "objects/url.h"

namespace syncline::objects {
using base::Code;
using base::Fail;
using base::Result;

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
    // The user's own files, whatever `files` is restricted to.
    SYNCLINE_ASSIGN(S3Config config,
                    LoadS3Config(base::FileSystem::Posix(), ProcessEnvironment(), settings));
    SYNCLINE_ASSIGN(S3Bucket bucket, S3Bucket::Make(url, settings, std::move(config)));
    return OpenS3(std::move(bucket), settings);
  }
  return Fail(
      Code::kInvalidArgument,
      fmt::format("{}: a store is a directory, file://, http://, https:// or s3://", Redact(url)));
}

}  // namespace syncline::objects
