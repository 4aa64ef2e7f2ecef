#include "objects/s3_bucket.h"

#include <fmt/format.h>

#include <algorithm>

#include "objects/s3_replies.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::Result;

constexpr std::size_t kMaxMessage = 300;

bool IsBucketName(std::string_view name) {
  return name.size() >= 3 && name.size() <= 255 && std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '.' || c == '_';
         });
}

bool IsRegion(std::string_view region) {
  return !region.empty() && std::ranges::all_of(region, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

// Where the bucket is.
Result<Url> BucketUrl(const std::string& bucket, const Settings& settings, const S3Config& config) {
  std::string endpoint = config.endpoint;
  if (endpoint.empty()) {
    endpoint = fmt::format("https://s3.{}.amazonaws.com{}", config.region,
                           config.region.starts_with("cn-") ? ".cn" : "");
  }
  auto url = ParseUrl(endpoint);
  if (!url) return Annotate(std::move(url).error(), "S3 endpoint");
  if ((url->scheme != "http" && url->scheme != "https") || !url->user.empty() ||
      !url->query.empty()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("S3 endpoint {}: expected http:// or https:// with a host, without "
                            "user and query",
                            Redact(endpoint)));
  }
  while (url->path.ends_with('/')) url->path.pop_back();
  // The certificate of AWS is for one name below it, without dots.
  const bool usual = !config.endpoint.empty() || bucket.find('.') != std::string::npos;
  if (settings.path_style.value_or(usual)) {
    url->path += fmt::format("/{}", bucket);
  } else {
    url->host = bucket + "." + url->host;
  }
  return url;
}

// Failures that S3 asks to try again, whatever their status.
bool CodeMayPass(std::string_view code) {
  constexpr std::string_view kCodes[] = {
      "SlowDown",         "ServiceUnavailable",         "InternalError",      "RequestTimeout",
      "OperationAborted", "ConditionalRequestConflict", "ThrottlingException"};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

}  // namespace

Result<S3Bucket> S3Bucket::Make(std::string_view url, const Settings& settings, S3Config config) {
  const auto bad = [&](std::string_view why) {
    return Fail(Code::kInvalidArgument, fmt::format("{}: {}", Redact(url), why));
  };
  std::string_view rest = url.substr(std::min(url.find("://") + 3, url.size()));
  if (rest.find_first_of("?#") != std::string_view::npos) return bad("'?' and '#' have no meaning");
  const std::string bucket(rest.substr(0, rest.find('/')));
  rest.remove_prefix(std::min(bucket.size() + 1, rest.size()));
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!IsBucketName(bucket)) return bad("expected s3://bucket/prefix with the name of a bucket");
  if (!rest.empty() && !base::IsInsidePath(rest)) return bad("its prefix is no plain path");
  if (!IsRegion(config.region)) {
    return bad(fmt::format("'{}' is no name of a region", config.region));
  }
  S3Bucket made;
  SYNCLINE_ASSIGN(made.base_, BucketUrl(bucket, settings, config));
  made.config_ = std::move(config);
  made.shown_ = fmt::format("s3://{}{}{}", bucket, rest.empty() ? "" : "/", rest);
  made.prefix_ = rest.empty() ? "" : fmt::format("{}/", rest);
  return made;
}

Request S3Bucket::MakeRequest(std::string method, const std::string& key, const Pairs& query,
                              Pairs headers, std::string_view payload_hash) const {
  Request request{.method = std::move(method),
                  .url = base_,
                  .shown = key.empty() ? shown_ : base::JoinPath(shown_, key),
                  .headers = std::move(headers)};
  if (!key.empty()) {
    request.url.path += fmt::format("/{}", PercentEncode(prefix_ + key, true));
  } else if (request.url.path.empty()) {
    request.url.path += '/';  // the bucket is in the host name
  }
  for (const auto& [name, value] : query) {
    request.url.query += fmt::format("{}{}={}", request.url.query.empty() ? "" : "&",
                                     PercentEncode(name, false), PercentEncode(value, false));
  }
  if (!config_.credentials.access_key.empty()) {
    Sign(request, config_.credentials, config_.region, payload_hash, std::time(nullptr));
  }
  return request;
}

// What a server says, so that it can be shown: short, in one line, without what we are known by.
std::string S3Bucket::Clean(std::string text) const {
  const Credentials& mine = config_.credentials;
  for (const std::string& secret : {mine.secret_key, mine.session_token, mine.access_key}) {
    std::size_t at = 0;
    while (!secret.empty() && (at = text.find(secret, at)) != std::string::npos) {
      text = fmt::format("{}***{}", text.substr(0, at), text.substr(at + secret.size()));
      at += 3;
    }
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (text.size() > kMaxMessage) text = text.substr(0, kMaxMessage) + "…";
  return text;
}

Failure S3Bucket::Explain(const std::string& what, const Reply& reply) const {
  return Explain(what, reply.head, ParseS3Error(reply.error_body).value_or(S3Error()));
}

Failure S3Bucket::Explain(const std::string& what, const ReplyHead& head,
                          const S3Error& error) const {
  const std::string detail = error.code.empty() ? "" : error.code + ": " + error.message;
  Failure failure = StatusFailure(head, what, Clean(detail));
  if (CodeMayPass(error.code)) {
    failure.error.code = Code::kUnavailable;
    failure.may_pass = true;
  }
  const std::string* said = head.Header("x-amz-bucket-region");
  const std::string region = Clean(said == nullptr ? error.region : *said);
  const bool elsewhere = head.status == 301 || head.status == 400 || head.status == 307;
  if (elsewhere && !region.empty() && region != config_.region) {
    failure.error.code = Code::kInvalidArgument;
    failure.error.message += fmt::format(
        "; the bucket is in the region {}, not in {}: set "
        "AWS_REGION={}",
        region, config_.region, region);
    failure.may_pass = false;
  }
  return failure;
}

}  // namespace syncline::objects
