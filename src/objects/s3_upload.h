// One object from a file into a bucket, at once or in parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "objects/s3_bucket.h"

namespace syncline::objects {

inline constexpr std::uint64_t kSmallestPart = 8 << 20;
inline constexpr std::uint64_t kMaxParts = 10000;
inline constexpr std::uint64_t kMaxObject = 5ULL << 40;  // 5 TiB

// Whole MiB, at least kSmallestPart, so that there are at most kMaxParts.
std::uint64_t PartBytes(std::uint64_t object_bytes);

// For one upload. What it is given must outlive it.
class S3Upload {
 public:
  using Sender = std::function<Tried<Reply>(const Request&, Receiver*)>;
  using Sent = std::function<void(std::uint64_t)>;

  // send: one try; a status other than 2xx is a failure.
  S3Upload(const S3Bucket& bucket, const Settings& settings, const Sender& send, std::string key,
           base::File& from, const Sent& sent, const base::CancelToken* cancel)
      : bucket_(bucket),
        settings_(settings),
        send_(send),
        key_(std::move(key)),
        from_(from),
        sent_(sent),
        cancel_(cancel) {}

  base::Status Run();

 private:
  base::Status RunParts(std::uint64_t bytes);
  base::Result<std::string> Begin();
  // The tag of the part; part 0: the whole object.
  base::Result<std::string> SendRange(std::uint64_t offset, std::uint64_t bytes, std::size_t part,
                                      const std::string& upload);
  base::Status Complete(const std::string& upload, const std::vector<std::string>& tags,
                        std::uint64_t bytes);
  Tried<void> TryComplete(const std::string& upload, const std::string& body);
  bool IsComplete(std::size_t parts, std::uint64_t bytes);
  void Abort(const std::string& upload);
  void Report(std::uint64_t position);

  const S3Bucket& bucket_;
  const Settings& settings_;
  const Sender& send_;
  std::string key_;
  base::File& from_;
  const Sent& sent_;
  const base::CancelToken* cancel_;
  std::uint64_t reported_ = 0;
};

}  // namespace syncline::objects
