// Requests to one bucket, signed, and what its refusals mean. Sends nothing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "objects/s3_config.h"
#include "objects/transfer.h"

namespace syncline::objects {

struct S3Error;

// Immutable, thread-safe.
class S3Bucket {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  // url: "s3://bucket/prefix", the prefix as it is, not percent-encoded.
  static base::Result<S3Bucket> Make(std::string_view url, const Settings& settings,
                                     S3Config config);

  const std::string& shown() const { return shown_; }    // "s3://bucket/prefix"
  const std::string& prefix() const { return prefix_; }  // empty or ends with '/'
  // Does TLS guard what is sent?
  bool secure() const { return base_.scheme == "https"; }

  // A request to be sent now. key: below the prefix; empty: to the bucket itself. query: not
  // percent-encoded. payload_hash: of the body.
  Request MakeRequest(std::string method, const std::string& key, const Pairs& query, Pairs headers,
                      std::string_view payload_hash) const;

  // The failure that a reply without success is. what: the request, for messages.
  Failure Explain(const std::string& what, const Reply& reply) const;
  // Likewise from the parts of an error: some come with status 200.
  Failure Explain(const std::string& what, const ReplyHead& head, const S3Error& error) const;

 private:
  std::string Clean(std::string text) const;

  S3Config config_;
  Url base_;  // of the bucket, without '/' at its end
  std::string shown_;
  std::string prefix_;
};

}  // namespace syncline::objects
