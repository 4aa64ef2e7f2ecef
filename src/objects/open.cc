#include <fmt/format.h>

#include "objects/http_store.h"
#include "objects/object_store.h"
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
  (void)files;
  const std::string scheme = SchemeOf(url);
  if (scheme == "http" || scheme == "https") {
    SYNCLINE_ASSIGN(Url parsed, ParseUrl(url));
    return OpenHttp(std::move(parsed), settings);
  }
  return Fail(
      Code::kInvalidArgument,
      fmt::format("{}: a store is a directory, file://, http://, https:// or s3://", Redact(url)));
}

}  // namespace syncline::objects
