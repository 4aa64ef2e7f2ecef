#include "objects/s3_sign.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <map>

namespace syncline::objects {
namespace {

using Digest = std::array<std::uint8_t, 32>;

Digest Hmac(std::string_view key, std::string_view text) {
  Digest digest = {};
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), nullptr);
  return digest;
}

std::string_view View(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// "A  B " is "A B".
std::string TrimAll(std::string_view value) {
  std::string trimmed;
  for (const char c : value) {
    if (c != ' ' || (!trimmed.empty() && trimmed.back() != ' ')) trimmed += c;
  }
  if (trimmed.ends_with(' ')) trimmed.pop_back();
  return trimmed;
}

// Sorted by name, then value; a parameter without '=' gets one.
std::string CanonicalQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const std::size_t equals = pair.find('=');
    pairs.emplace_back(pair.substr(0, equals),
                       equals == std::string_view::npos ? "" : pair.substr(equals + 1));
  }
  std::ranges::sort(pairs);
  std::string canonical;
  for (const auto& [name, value] : pairs) {
    canonical += fmt::format("{}{}={}", canonical.empty() ? "" : "&", name, value);
  }
  return canonical;
}

}  // namespace

std::string Sha256Hex(std::string_view text) {
  Digest digest = {};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return base::ToHex(digest);
}

base::Result<std::string> Sha256HexOfFile(base::File& file, std::uint64_t offset,
                                          std::uint64_t bytes, const base::CancelToken* cancel) {
  constexpr std::uint64_t kBlockBytes = 1 << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, kBlockBytes)));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  while (bytes > 0) {
    if (cancel != nullptr) SYNCLINE_TRY(cancel->Check());
    const auto some = std::span(block).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes, block.size())));
    SYNCLINE_TRY(base::ReadExactly(file, some, offset));
    EVP_DigestUpdate(context.get(), some.data(), some.size());
    offset += some.size();
    bytes -= some.size();
  }
  Digest digest = {};
  EVP_DigestFinal_ex(context.get(), digest.data(), nullptr);
  return base::ToHex(digest);
}

void Sign(Request& request, const Credentials& credentials, std::string_view region,
          std::string_view payload_hash, std::time_t now) {
  std::tm utc = {};
  gmtime_r(&now, &utc);
  const std::string day =
      fmt::format("{:04}{:02}{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
  const std::string time =
      fmt::format("{}T{:02}{:02}{:02}Z", day, utc.tm_hour, utc.tm_min, utc.tm_sec);
  request.headers.emplace_back("x-amz-date", time);
  request.headers.emplace_back("x-amz-content-sha256", payload_hash);
  if (!credentials.session_token.empty()) {
    request.headers.emplace_back("x-amz-security-token", credentials.session_token);
  }

  std::map<std::string, std::string> signed_headers = {{"host", request.url.Authority()}};
  for (const auto& [name, value] : request.headers) {
    std::string lower = name;
    for (char& c : lower) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    signed_headers[lower] = TrimAll(value);
  }
  std::string canonical_headers;
  std::string names;
  for (const auto& [name, value] : signed_headers) {
    canonical_headers += fmt::format("{}:{}\n", name, value);
    names += fmt::format("{}{}", names.empty() ? "" : ";", name);
  }
  const std::string canonical = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}", request.method, request.url.path.empty() ? "/" : request.url.path,
      CanonicalQuery(request.url.query), canonical_headers, names, payload_hash);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, region);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, Sha256Hex(canonical));

  Digest key = Hmac("AWS4" + credentials.secret_key, day);
  for (const std::string_view step :
       {region, std::string_view("s3"), std::string_view("aws4_request")}) {
    key = Hmac(View(key), step);
  }
  request.headers.emplace_back(
      "authorization",
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                  credentials.access_key, scope, names, base::ToHex(Hmac(View(key), to_sign))));
}

}  // namespace syncline::objects
