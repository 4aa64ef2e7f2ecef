#include "objects/reply_head.h"

#include <fmt/format.h>

#include <charconv>
#include <ctime>

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;

constexpr std::size_t kMaxHeadBytes = 256 << 10;

std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::optional<std::uint64_t> ParseNumber(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Code CodeOfStatus(int status) {
  if (status == 404 || status == 410) return Code::kNotFound;
  if (status == 401 || status == 403 || status == 407) return Code::kPermissionDenied;
  if (status == 412) return Code::kOutOfOrder;
  if (StatusMayPass(status)) return Code::kUnavailable;
  return Code::kIncompatible;
}

}  // namespace

const std::string* ReplyHead::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::optional<std::uint64_t> ReplyHead::Length() const {
  const std::string* value = Header("content-length");
  return value == nullptr ? std::nullopt : ParseNumber(*value);
}

base::Status ReplyHead::AddLine(std::string_view line) {
  bytes_ += line.size();
  if (bytes_ > kMaxHeadBytes) {
    return Fail(Code::kCorrupt, fmt::format("its headers exceed {} bytes", kMaxHeadBytes));
  }
  if (line.starts_with("HTTP/")) {
    headers.clear();
    const std::size_t space = line.find(' ');
    const std::string_view digits =
        space == std::string_view::npos ? "" : line.substr(space + 1, 3);
    status = static_cast<int>(ParseNumber(digits).value_or(0));
    return {};
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return {};
  std::string name(Trim(line.substr(0, colon)));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const std::string_view value = Trim(line.substr(colon + 1));
  if (name == "content-length") {
    const std::string* before = Header(name);
    if (!ParseNumber(value) || (before != nullptr && *before != value)) {
      return Fail(Code::kCorrupt, "its Content-Length is no number or contradicts itself");
    }
  }
  headers.emplace_back(std::move(name), value);
  return {};
}

std::optional<ContentRange> ContentRange::Parse(std::string_view value) {
  if (!value.starts_with("bytes ")) return std::nullopt;
  value = Trim(value.substr(6));
  const std::size_t slash = value.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view range = value.substr(0, slash);
  const std::string_view total = value.substr(slash + 1);
  ContentRange parsed;
  if (total != "*") {
    parsed.total = ParseNumber(total);
    if (!parsed.total) return std::nullopt;
  }
  if (range == "*") return parsed;
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = ParseNumber(range.substr(0, dash));
  const auto last = ParseNumber(range.substr(dash + 1));
  if (!first || !last || *last < *first || (parsed.total && *last >= *parsed.total)) {
    return std::nullopt;
  }
  parsed.has_range = true;
  parsed.first = *first;
  parsed.last = *last;
  return parsed;
}

Failure StatusFailure(const ReplyHead& head, std::string_view what, std::string_view detail) {
  Failure failure;
  failure.error.code = CodeOfStatus(head.status);
  failure.error.message = fmt::format("{}: the server answers {}{}{}", what, head.status,
                                      detail.empty() ? "" : ", ", detail);
  failure.may_pass = StatusMayPass(head.status);
  failure.outcome_unknown = head.status >= 500;
  failure.status = head.status;
  if (const std::string* after = head.Header("retry-after")) {
    failure.retry_after = ParseRetryAfter(*after, static_cast<double>(std::time(nullptr)));
  }
  return failure;
}

}  // namespace syncline::objects
