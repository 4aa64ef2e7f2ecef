// AWS Signature Version 4 of a request to S3.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/file.h"
#include "objects/transfer.h"

namespace syncline::objects {

struct Credentials {
  std::string access_key;  // empty: none; requests are not signed
  std::string secret_key;
  std::string session_token;  // may be empty
};

// In place of the hash of a body, where TLS guards it.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// Lower-case hexadecimal.
std::string Sha256Hex(std::string_view text);
base::Result<std::string> Sha256HexOfFile(base::File& file, std::uint64_t offset,
                                          std::uint64_t bytes, const base::CancelToken* cancel);

// Adds the headers x-amz-date, x-amz-content-sha256, x-amz-security-token and authorization.
// request.url.path and query must be percent-encoded as S3 asks (PercentEncode; each '=' and '&' of
// a value too). All headers of the request and its host are signed. `now`: seconds since the epoch;
// servers refuse what is more than 15 minutes off.
void Sign(Request& request, const Credentials& credentials, std::string_view region,
          std::string_view payload_hash, std::time_t now);

}  // namespace syncline::objects
