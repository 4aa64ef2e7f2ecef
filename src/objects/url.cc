#include "objects/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;

// Not the ones of <cctype>, which ask the locale.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsHost(std::string_view host) {
  if (host.starts_with('[')) {
    if (!host.ends_with(']') || host.size() < 4) return false;
    host = host.substr(1, host.size() - 2);
    return std::ranges::all_of(host,
                               [](char c) { return HexDigit(c) >= 0 || c == ':' || c == '.'; });
  }
  return !host.empty() && std::ranges::all_of(host, [](char c) {
    return IsDigit(c) || IsLetter(c) || c == '-' || c == '.' || c == '_';
  });
}

// Splits "host:port" off its port; false if the port is none.
bool TakePort(std::string_view& authority, std::uint16_t& port) {
  const std::size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos || authority.ends_with(']')) return true;
  const std::string_view digits = authority.substr(colon + 1);
  authority = authority.substr(0, colon);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return error == std::errc() && end == digits.data() + digits.size() && port != 0;
}

// No blanks and no control characters: they could end a line of the request.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c != '\x7f'; });
}

}  // namespace

std::uint16_t Url::EffectivePort() const {
  if (port != 0) return port;
  return scheme == "https" ? 443 : 80;
}

std::string Url::Authority() const {
  const bool usual =
      port == 0 || (scheme == "https" && port == 443) || (scheme == "http" && port == 80);
  return usual ? host : fmt::format("{}:{}", host, port);
}

std::string Url::Shown() const { return fmt::format("{}://{}{}", scheme, Authority(), path); }

std::string Url::ToRequest() const {
  return fmt::format("{}://{}{}{}{}", scheme, Authority(), path.empty() ? "/" : path,
                     query.empty() ? "" : "?", query);
}

bool Url::SameOrigin(const Url& other) const {
  return scheme == other.scheme && host == other.host && EffectivePort() == other.EffectivePort();
}

std::string SchemeOf(std::string_view text) {
  const std::size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0 || !IsLetter(text.front())) return "";
  const std::string_view scheme = text.substr(0, end);
  const bool good = std::ranges::all_of(
      scheme, [](char c) { return IsDigit(c) || IsLetter(c) || c == '+' || c == '-' || c == '.'; });
  return good ? Lower(scheme) : "";
}

base::Result<Url> ParseUrl(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Fail(Code::kInvalidArgument, fmt::format("URL {}: {}", Redact(text), why));
  };
  Url url;
  url.scheme = SchemeOf(text);
  if (url.scheme.empty()) return bad("has no scheme");
  std::string_view rest = text.substr(url.scheme.size() + 3);
  rest = rest.substr(0, rest.find('#'));
  const std::size_t query = rest.find('?');
  if (query != std::string_view::npos) {
    url.query = rest.substr(query + 1);
    rest = rest.substr(0, query);
  }
  std::string_view authority = rest.substr(0, rest.find('/'));
  url.path = rest.substr(authority.size());
  const std::size_t at = authority.rfind('@');
  if (at != std::string_view::npos) {
    const std::string_view info = authority.substr(0, at);
    authority = authority.substr(at + 1);
    const std::size_t colon = info.find(':');
    auto user = PercentDecode(info.substr(0, colon));
    auto password = PercentDecode(colon == std::string_view::npos ? "" : info.substr(colon + 1));
    if (!user || !password) return bad("its user info is not percent-encoded");
    url.user = *std::move(user);
    url.password = *std::move(password);
  }
  if (!TakePort(authority, url.port)) return bad("its port is no number from 1 to 65535");
  if (authority.empty()) return bad("has no host");
  if (!IsHost(authority)) return bad("its host has characters that no host has");
  url.host = url.scheme == "s3" ? std::string(authority) : Lower(authority);
  if (!IsPlain(url.path) || !IsPlain(url.query)) return bad("has blanks or control characters");
  return url;
}

std::string Redact(std::string_view text) {
  const std::size_t scheme = text.find("://");
  const std::string_view cut = text.substr(0, text.find_first_of("?#"));
  if (scheme == std::string_view::npos || cut.size() < scheme + 3) return std::string(cut);
  const std::string_view begin = text.substr(0, scheme + 3);
  const std::string_view rest = cut.substr(begin.size());
  // A password may hold a '/', '?' or '#' that should have been encoded: better to show too little.
  const std::size_t at = rest.rfind('@');
  if (at != std::string_view::npos) return fmt::format("{}{}", begin, rest.substr(at + 1));
  std::string_view authority = rest.substr(0, rest.find('/'));
  std::uint16_t port = 0;
  if (text.find('@') != std::string_view::npos && !TakePort(authority, port)) {
    return fmt::format("{}…", begin);
  }
  return fmt::format("{}{}", begin, rest);
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (IsDigit(c) || IsLetter(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (keep_slash && c == '/')) {
      encoded += c;
    } else {
      fmt::format_to(std::back_inserter(encoded), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

base::Result<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const bool whole = i + 2 < text.size();
    const int high = whole ? HexDigit(text[i + 1]) : -1;
    const int low = whole ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Fail(Code::kInvalidArgument, "a '%' without two hexadecimal digits");
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

base::Result<std::string> PathOfFileUrl(std::string_view url) {
  std::string_view rest = url.substr(url.find("://") + 3);
  if (rest.starts_with("localhost/")) rest.remove_prefix(9);
  const auto path = PercentDecode(rest);
  if (rest.starts_with('/') && path && path->find('\0') == std::string::npos) return *path;
  return Fail(Code::kInvalidArgument,
              fmt::format("{}: expected file:///path, percent-encoded", Redact(url)));
}

}  // namespace syncline::objects
