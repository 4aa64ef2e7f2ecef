// Where S3 is, and who we are there: settings, then the environment, then the files of the AWS
// tools.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "objects/object_store.h"
#include "objects/s3_sign.h"

namespace syncline::objects {

struct S3Config {
  Credentials credentials;  // of no one, where none are found: requests are not signed
  std::string region;
  std::string endpoint;  // empty: AWS
};

// The value of an environment variable; nothing or empty: not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment ProcessEnvironment();

// Credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile
// (AWS_PROFILE, else AWS_DEFAULT_PROFILE, else "default") of the credentials file, else of the
// config file. kInvalidArgument for half a pair, and for a profile that was named and is nowhere;
// kIncompatible for a profile whose credentials would come from elsewhere (a role, SSO, a process);
// kCorrupt, with file and line but no content, for a file that is not in the form.
base::Result<S3Config> LoadS3Config(base::FileSystem& files, const Environment& environment,
                                    const Settings& settings);

}  // namespace syncline::objects
