#include "serve/auth.h"

#include <algorithm>
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

bool SameKey(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^
                                        static_cast<unsigned char>(other));
  }
  return difference == 0;
}

bool IsAllowed(const Keys& keys, Level level, const http::Request& request) {
  if (level == Level::kOpen || request.method == "OPTIONS") return true;
  const bool admin = level == Level::kAdminOptional && !keys.admin.empty();
  const std::string& key = admin ? keys.admin : keys.api;
  return key.empty() || Carries(request, key);
}

}  // namespace syncline::serve
