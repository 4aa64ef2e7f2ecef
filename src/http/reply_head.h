// The status line and headers of a reply, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace syncline::http {

struct ReplyHead {
  int status = 200;
  std::string_view content_type;  // empty: no such header
  std::span<const std::pair<std::string, std::string>> headers;
  std::optional<std::uint64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool http_1_0 = false;  // of the client: keep-alive is then said, not taken for granted
};

// With the empty line at its end. Headers that the server writes itself or that are malformed (no
// token as name, a control character in the value) are left out, so that no value can
// split the reply.
std::string FormatHead(const ReplyHead& head);

// A whole reply with the body {"error":{"message":…}} that closes the connection or keeps it.
std::string FormatError(int status, std::string_view message, bool keep_alive, bool http_1_0,
                        bool head_only);

// Whether a reply of that status has a body at all.
bool StatusHasBody(int status);

}  // namespace syncline::http
