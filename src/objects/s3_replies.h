// The replies of S3 that are read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "objects/object_store.h"

namespace syncline::objects {

// One page of ListObjectsV2. Keys and folders are whole, as in the bucket.
struct ListPage {
  std::vector<ObjectInfo> objects;
  std::vector<std::string> folders;
  std::string next;  // token of the next page; empty: the last one
};

// kCorrupt for anything that is no such page, contradicts itself or lacks a key or a size.
base::Result<ListPage> ParseListPage(std::string_view xml);

// Of InitiateMultipartUploadResult.
base::Result<std::string> ParseUploadId(std::string_view xml);

struct S3Error {
  std::string code;  // "NoSuchKey"
  std::string message;
  std::string region;  // the right one, where the server says it
};

// Nothing where it is no error of S3.
std::optional<S3Error> ParseS3Error(std::string_view xml);

// The body that completes a multipart upload, and whether the reply to it is a success: such a
// reply has status 200 in either case. kCorrupt if it is neither.
std::string CompleteUploadBody(const std::vector<std::string>& tags);
base::Result<std::optional<S3Error>> ParseCompleteUpload(std::string_view xml);

}  // namespace syncline::objects
