#include <algorithm>

#include "http/server.h"

namespace syncline::http {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualWithoutCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, Lower, Lower);
}

}  // namespace

const std::string* Request::Header(std::string_view name) const {
  const auto found = std::ranges::find_if(
      headers, [&](const auto& header) { return EqualWithoutCase(header.first, name); });
  return found == headers.end() ? nullptr : &found->second;
}

const std::string* Request::Query(std::string_view name) const {
  const auto found =
      std::ranges::find_if(query, [&](const auto& field) { return field.first == name; });
  return found == query.end() ? nullptr : &found->second;
}

}  // namespace syncline::http
