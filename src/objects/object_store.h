// Objects under names, wherever they are: a directory, the tree of an HTTP server, a bucket of S3.
// Knows nothing of weights.
//
// A store is opened by URL:
//   /path, file:///path        a directory; keys are relative paths
//   http(s)://host/path        read-only; a key is appended to the path, each part percent-encoded
//   s3://bucket/prefix         Amazon S3 or a server that speaks its protocol
//
// Keys are relative paths (base::IsInsidePath). Every error names the object's URL, never a
// credential: user info and query of a URL are left out of messages. Failures that may pass (a
// connection that cannot be made or breaks, 408, 425, 429, 5xx, S3's SlowDown) are tried again with
// growing, jittered waits (or Retry-After) within Settings::retry_seconds, then reported as
// kUnavailable (kTimeout when nothing moved for stall_seconds). 404 is kNotFound, 401, 403 and a
// certificate that is not trusted are kPermissionDenied, a reply that contradicts itself is
// kCorrupt, a server that cannot do what is needed (ranges, conditional writes) is kIncompatible.
//
// Server certificates are always verified. Redirects are followed for http(s) stores only, to http
// and https, not from https to http, and without the user info of the URL to another host. Proxies
// are taken from the environment (https_proxy, no_proxy), as libcurl does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"

namespace syncline::objects {

struct Settings {
  double connect_seconds = 10;
  double stall_seconds = 30;  // without a byte moving
  // Over all tries of one call, from its begin or from when a byte last came or a part was last
  // written; 0: one try.
  double retry_seconds = 120;
  std::string ca_file;  // PEM of authorities to trust beside the system's; empty: those alone
  // Of S3. Empty ones come from the usual environment (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
  // AWS_REGION, AWS_DEFAULT_REGION, AWS_PROFILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
  // AWS_SESSION_TOKEN) and files (~/.aws/credentials, ~/.aws/config, or where
  // AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE say), once, when the store is opened. Requests
  // are not signed if there are no credentials anywhere.
  std::string endpoint;  // "https://minio.local:9000"; nothing anywhere: AWS
  std::string region;    // nothing anywhere: us-east-1
  // Bucket in the path; nothing: where an endpoint is given or the bucket's name has a dot.
  std::optional<bool> path_style;
};

struct ObjectInfo {
  std::string key;
  std::uint64_t bytes = 0;
  std::string tag;  // changes with the content, where the store has such a thing (ETag); else empty
};

// Thread-safe. `cancel` may be null; a cancelled call returns kCancelled soon, also while it waits.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // As it was opened, without user info and query.
  virtual const std::string& url() const = 0;
  // Of a directory: its path; else empty.
  virtual const std::string& local_path() const = 0;
  // Can it be asked what it holds, and be written?
  virtual bool can_list() const = 0;
  virtual bool can_write() const = 0;

  // All objects whose key starts with `prefix`, by key, in as many requests as it takes. With
  // `folders_only`, instead the "folders" directly under the prefix (which then is empty or ends
  // with '/'): as key their whole name from the store on, with a trailing '/', and no size. Objects
  // with keys that are no relative paths are left out. Of a directory, files and folders that begin
  // with '.' count as any other except for the store's own (see directory_store.h), and links are
  // followed. Nothing below the prefix is an empty list; no directory, or no bucket, is kNotFound.
  // kIncompatible where can_list() is false.
  virtual base::Result<std::vector<ObjectInfo>> List(const std::string& prefix, bool folders_only,
                                                     const base::CancelToken* cancel) = 0;
  virtual base::Result<ObjectInfo> Stat(const std::string& key,
                                        const base::CancelToken* cancel) = 0;
  // Exactly into.size() bytes from `offset` on; `received` (may be null) is told how many more have
  // come, from this thread, so that a caller can show progress. What came before a connection broke
  // is not fetched again. `tag`, if not empty, must still be the object's (If-Match): kOutOfOrder
  // "changed while it was read" otherwise. kCorrupt with both sizes if the object ends before. A
  // server that ignores ranges will do for what lies in the first 64 MiB of an object.
  virtual base::Status ReadAt(const std::string& key, base::MutableByteSpan into,
                              std::uint64_t offset, const std::string& tag,
                              const std::function<void(std::uint64_t)>& received,
                              const base::CancelToken* cancel) = 0;
  // A small object whole; kLimitExceeded, without reading it, if it is larger than `limit`.
  virtual base::Result<std::string> ReadText(const std::string& key, std::uint64_t limit,
                                             const base::CancelToken* cancel) = 0;
  // Writes (or replaces) an object from a file, in parts where it is large; it appears whole. A
  // multipart upload that fails is aborted. `sent` (may be null) is told how many more bytes have
  // been sent, from this thread.
  virtual base::Status Put(const std::string& key, base::File& from,
                           const std::function<void(std::uint64_t)>& sent,
                           const base::CancelToken* cancel) = 0;
  // Appears whole. With `if_absent`: kAlreadyExists if something is there already, decided by the
  // store itself: one of many writers wins. If the reply to a try was lost and the next finds this
  // very text there, it has won. kIncompatible for a server without conditional writes.
  virtual base::Status PutText(const std::string& key, std::string_view text, bool if_absent,
                               const base::CancelToken* cancel) = 0;
  // Fine if nothing is there. Folders that are left empty go too.
  virtual base::Status Remove(const std::string& key, const base::CancelToken* cancel) = 0;
};

// Does it name another place than a local directory? True for any "scheme://" but file.
bool IsRemote(std::string_view url);

// kInvalidArgument for a scheme that we do not know or a URL without host or bucket. Nothing is
// asked of the store yet. `files` serves local directories and must outlive the store.
base::Result<std::unique_ptr<ObjectStore>> Open(base::FileSystem& files, std::string_view url,
                                                const Settings& settings);

}  // namespace syncline::objects
