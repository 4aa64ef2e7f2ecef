#include "replica/checked_text.h"

#include <fmt/format.h>

#include <charconv>

#include "tensor/hash.h"

namespace syncline::replica {
namespace {

std::string Begin(std::string_view name, std::string_view body) {
  return fmt::format(R"({{"check":"{}","{}":)",
                     tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(body)), name);
}

}  // namespace

std::string CheckedText(std::string_view name, std::string_view body) {
  return fmt::format("{}{}}}", Begin(name, body), body);
}

std::optional<std::string_view> CheckedBody(std::string_view name, std::string_view text) {
  const std::size_t begin = Begin(name, "").size();
  if (text.size() <= begin || !text.ends_with('}')) return std::nullopt;
  const std::string_view body = text.substr(begin, text.size() - begin - 1);
  if (text.substr(0, begin) != Begin(name, body)) return std::nullopt;
  return body;
}

std::string EscapePath(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (c >= ' ' && c <= '~' && c != '%') {
      text += c;
    } else {
      text += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

std::optional<std::string> UnescapePath(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path += text[i];
      continue;
    }
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
      return std::nullopt;
    }
    path += static_cast<char>(byte);
    i += 2;
  }
  return path;
}

}  // namespace syncline::replica
