#include "http/reply_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>

#include "base/json.h"

namespace syncline::http {
namespace {

std::string_view Reason(int status) {
  struct Entry {
    int status;
    std::string_view reason;
  };
  constexpr std::array<Entry, 29> kReasons = {{{200, "OK"},
                                               {201, "Created"},
                                               {202, "Accepted"},
                                               {204, "No Content"},
                                               {206, "Partial Content"},
                                               {301, "Moved Permanently"},
                                               {302, "Found"},
                                               {304, "Not Modified"},
                                               {307, "Temporary Redirect"},
                                               {308, "Permanent Redirect"},
                                               {400, "Bad Request"},
                                               {401, "Unauthorized"},
                                               {403, "Forbidden"},
                                               {404, "Not Found"},
                                               {405, "Method Not Allowed"},
                                               {408, "Request Timeout"},
                                               {409, "Conflict"},
                                               {413, "Content Too Large"},
                                               {415, "Unsupported Media Type"},
                                               {416, "Range Not Satisfiable"},
                                               {422, "Unprocessable Content"},
                                               {429, "Too Many Requests"},
                                               {431, "Request Header Fields Too Large"},
                                               {499, "Client Closed Request"},
                                               {500, "Internal Server Error"},
                                               {501, "Not Implemented"},
                                               {503, "Service Unavailable"},
                                               {504, "Gateway Timeout"},
                                               {507, "Insufficient Storage"}}};
  const auto found = std::ranges::find(kReasons, status, &Entry::status);
  return found == kReasons.end() ? std::string_view("Unknown") : found->reason;
}

bool IsTokenCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").contains(c);
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

bool IsReserved(std::string_view name) {
  constexpr std::array<std::string_view, 5> kReserved = {
      "connection", "content-length", "content-type", "date", "transfer-encoding"};
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::any_of(kReserved, [&](std::string_view reserved) {
    return std::ranges::equal(name, reserved, {}, lower);
  });
}

bool IsSendable(std::string_view name, std::string_view value) {
  return !name.empty() && std::ranges::all_of(name, IsTokenCharacter) && !IsReserved(name) &&
         std::ranges::none_of(value, IsControl);
}

// The Date header of this second.
std::string_view Date() {
  thread_local std::time_t second = -1;
  thread_local std::string text;
  const std::time_t time = std::time(nullptr);
  if (time != second) {
    constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    std::tm parts = {};
    gmtime_r(&time, &parts);
    text = fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
                       kDays.at(static_cast<std::size_t>(parts.tm_wday)), parts.tm_mday,
                       kMonths.at(static_cast<std::size_t>(parts.tm_mon)), parts.tm_year + 1900,
                       parts.tm_hour, parts.tm_min, parts.tm_sec);
    second = time;
  }
  return text;
}

}  // namespace

bool StatusHasBody(int status) { return status != 204 && status != 304; }

std::string FormatHead(const ReplyHead& head) {
  std::string text;
  text.reserve(256);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {}\r\n", head.status, Reason(head.status), Date());
  if (!head.content_type.empty() && std::ranges::none_of(head.content_type, IsControl)) {
    fmt::format_to(out, "Content-Type: {}\r\n", head.content_type);
  }
  for (const auto& [name, value] : head.headers) {
    if (IsSendable(name, value)) fmt::format_to(out, "{}: {}\r\n", name, value);
  }
  if (head.content_length) fmt::format_to(out, "Content-Length: {}\r\n", *head.content_length);
  if (head.chunked) text += "Transfer-Encoding: chunked\r\n";
  if (!head.keep_alive) {
    text += "Connection: close\r\n";
  } else if (head.http_1_0) {
    text += "Connection: keep-alive\r\n";
  }
  text += "\r\n";
  return text;
}

std::string FormatError(int status, std::string_view message, bool keep_alive, bool http_1_0,
                        bool head_only) {
  std::string printable(message);  // it may quote what the client sent
  std::ranges::replace_if(
      printable, [](char c) { return IsControl(c) || static_cast<unsigned char>(c) > 0x7f; }, '?');
  base::Json::Object error;
  error.emplace_back("message", base::Json(std::move(printable)));
  base::Json::Object body;
  body.emplace_back("error", base::Json(std::move(error)));
  const std::string text = base::ToText(base::Json(std::move(body)));
  std::string reply = FormatHead({.status = status,
                                  .content_type = "application/json",
                                  .headers = {},
                                  .content_length = text.size(),
                                  .chunked = false,
                                  .keep_alive = keep_alive,
                                  .http_1_0 = http_1_0});
  if (!head_only) reply += text;
  return reply;
}

}  // namespace syncline::http
