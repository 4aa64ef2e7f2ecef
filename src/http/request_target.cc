#include "http/request_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace syncline::http {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

Result<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      decoded += ' ';
    } else if (text[i] != '%') {
      decoded += text[i];
    } else {
      const std::string_view digits = text.substr(i + 1, 2);
      unsigned char byte = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (error != std::errc() || end != digits.data() + 2) {
        return Fail(Code::kInvalidArgument,
                    fmt::format("\"%{}\" in the request target is no percent-encoding", digits));
      }
      decoded += static_cast<char>(byte);
      i += 2;
    }
  }
  return decoded;
}

Status ParseQuery(std::string_view text, Request& request) {
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
    if (field.empty()) continue;
    const std::size_t equals = std::min(field.find('='), field.size());
    SYNCLINE_ASSIGN(std::string name, Decode(field.substr(0, equals), true));
    SYNCLINE_ASSIGN(std::string value,
                    Decode(field.substr(std::min(equals + 1, field.size())), true));
    request.query.emplace_back(std::move(name), std::move(value));
  }
  return {};
}

}  // namespace

Status ParseTarget(std::string_view target, Request& request) {
  if (target == "*") {
    request.path = target;
    return {};
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (!target.starts_with('/')) {  // an authority alone stands for its root
      request.path.assign(1, '/');
      return ParseQuery(target.substr(target.empty() ? 0 : 1), request);
    }
    break;
  }
  if (!target.starts_with('/')) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the request target \"{}\" is no path", target.substr(0, 100)));
  }
  const std::size_t question = std::min(target.find('?'), target.size());
  SYNCLINE_ASSIGN(request.path, Decode(target.substr(0, question), false));
  return ParseQuery(target.substr(std::min(question + 1, target.size())), request);
}

}  // namespace syncline::http
