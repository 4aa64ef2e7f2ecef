// JSON texts that carry their own checksum: {"check":"<xxh3-128>","NAME":<body>}, the checksum
// being that of the body's text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace syncline::replica {

std::string CheckedText(std::string_view name, std::string_view body);

// The body; nothing if the text is not of that form or the checksum is wrong.
std::optional<std::string_view> CheckedBody(std::string_view name, std::string_view text);

// Paths are bytes, JSON is UTF-8: every byte outside of printable ASCII, and '%', becomes %XX.
std::string EscapePath(std::string_view path);
// Nothing for a % without two hex digits.
std::optional<std::string> UnescapePath(std::string_view text);

}  // namespace syncline::replica
