#include "serve/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace syncline::serve {
namespace {

bool IsBearer(std::string_view scheme) {
  return std::ranges::equal(scheme, std::string_view("bearer"), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == b;
  });
}

bool Carries(const http::Request& request, std::string_view key) {
  bool found = false;
  if (const std::string* header = request.Header("authorization")) {
    const std::string_view value = *header;
    const std::size_t space = value.find(' ');
    if (space != std::string_view::npos && IsBearer(value.substr(0, space))) {
      const std::size_t begin = value.find_first_not_of(' ', space);
      if (begin != std::string_view::npos) found = SameKey(value.substr(begin), key);
    }
  }
  if (const std::string* header = request.Header("x-api-key")) {
    found = SameKey(*header, key) || found;
  }
  return found;
}

}  // namespace

// Digests have one length, so neither the length of a key nor where it differs shows in the time.
bool SameKey(std::string_view given, std::string_view expected) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> first;
  std::array<unsigned char, SHA256_DIGEST_LENGTH> second;
  const auto digest = [](std::string_view key, auto& out) {
    return SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  };
  if (digest(given, first) == nullptr || digest(expected, second) == nullptr) return false;
  return CRYPTO_memcmp(first.data(), second.data(), first.size()) == 0;
}

Access AccessTo(const Keys& keys, Level level, const http::Request& request) {
  if (level == Level::kOpen || request.method == "OPTIONS") return Access::kGranted;
  if (level == Level::kAdminForce && keys.admin.empty()) return Access::kForbidden;
  const bool admin = level != Level::kNormal && !keys.admin.empty();
  const std::string& key = admin ? keys.admin : keys.api;
  return key.empty() || Carries(request, key) ? Access::kGranted : Access::kUnauthorized;
}

Level LevelOfUnknown(std::string_view path) {
  for (const std::string_view probe : {"/health", "/ready", "/metrics"}) {
    if (path.starts_with(probe)) return Level::kOpen;
  }
  return Level::kAdminOptional;
}

}  // namespace syncline::serve
