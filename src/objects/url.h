// URLs in parts: parsed, percent-encoded, and written so that no secret shows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace syncline::objects {

// "scheme://user:password@host:port/path?query" of http, https or s3; a fragment is dropped.
struct Url {
  std::string scheme;      // lower case
  std::string user;        // percent-decoded; never in a message
  std::string password;    // likewise
  std::string host;        // lower case except for s3; IPv6 in brackets
  std::uint16_t port = 0;  // 0: none was given
  std::string path;        // as it was written, percent-encoded; empty or starts with '/'
  std::string query;       // as it was written, without '?'; may be a secret

  std::uint16_t EffectivePort() const;  // 443 or 80 where none was given
  std::string Authority() const;        // "host" or "host:port", without a port that is the default
  // For messages: without user info and query.
  std::string Shown() const;
  // For a request: without user info.
  std::string ToRequest() const;
  bool SameOrigin(const Url& other) const;
};

// Does `text` begin with a scheme and "://"? The scheme in lower case, or empty.
std::string SchemeOf(std::string_view text);

// kInvalidArgument, naming the URL without its secrets, for anything but a whole URL with a host.
base::Result<Url> ParseUrl(std::string_view text);

// Any text that may be a URL, cut so that it can be shown: no user info, no query, no fragment.
std::string Redact(std::string_view text);

// RFC 3986: all but letters, digits and "-._~" as %XX, in upper case. `keep_slash`: '/' too stays.
std::string PercentEncode(std::string_view text, bool keep_slash);
// kInvalidArgument for a '%' without two digits.
base::Result<std::string> PercentDecode(std::string_view text);

// The path of "file:///a%20b", which is "/a b"; a host can only be this one. kInvalidArgument for
// anything else.
base::Result<std::string> PathOfFileUrl(std::string_view url);

}  // namespace syncline::objects
