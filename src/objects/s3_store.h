// A bucket of S3, or of a server that speaks its protocol, below a prefix.
#pragma once

#include <memory>

#include "objects/object_store.h"
#include "objects/s3_bucket.h"

namespace syncline::objects {

std::unique_ptr<ObjectStore> OpenS3(S3Bucket bucket, const Settings& settings);

}  // namespace syncline::objects
