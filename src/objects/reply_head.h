// The status line and headers of an HTTP reply, and what a status that is no success means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "objects/retry.h"

namespace syncline::objects {

struct ReplyHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, values trimmed

  // The first one of that name (in lower case); null if there is none.
  const std::string* Header(std::string_view name) const;
  // Empty if there is none.
  std::string Tag() const { return Header("etag") == nullptr ? "" : *Header("etag"); }
  // Content-Length; nothing where there is none. What is no number was refused by AddLine.
  std::optional<std::uint64_t> Length() const;

  // Takes one line as it came. A status line begins anew. kCorrupt for a Content-Length that is no
  // number or contradicts an earlier one, and for more than 256 KiB of headers.
  base::Status AddLine(std::string_view line);

 private:
  std::size_t bytes_ = 0;
};

// "bytes 0-99/1000" or "bytes */1000".
struct ContentRange {
  bool has_range = false;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;

  // Nothing for what is not of that form, ends before it begins or beyond its total.
  static std::optional<ContentRange> Parse(std::string_view value);
};

// The failure that a reply without success is. what: "GET https://host/key". detail: what the
// server says about it, may be empty.
Failure StatusFailure(const ReplyHead& head, std::string_view what, std::string_view detail);

}  // namespace syncline::objects
