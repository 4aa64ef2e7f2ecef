#include "text/byte_level.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "text/utf8.h"

namespace syncline::text {
namespace {

constexpr std::int16_t kNoByte = -1;
constexpr std::size_t kCodePoints = 256 + 68;

// Bytes that print in Latin-1 stand for themselves; the 68 others, in their order, are U+0100 on.
constexpr std::array<std::int16_t, kCodePoints> MakeTable() {
  std::array<std::int16_t, kCodePoints> table{};
  table.fill(kNoByte);
  std::size_t other = 256;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    table.at(prints ? static_cast<std::size_t>(byte) : other++) = byte;
  }
  return table;
}

constexpr auto kByteOfCodePoint = MakeTable();

}  // namespace

std::string ByteLevelBytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const std::string_view character = token.substr(at, NextUtf8(token.substr(at)).size);
    const char32_t point = CodePoint(character);
    if (point >= kCodePoints || kByteOfCodePoint[point] == kNoByte) return std::string(token);
    bytes.push_back(static_cast<char>(kByteOfCodePoint[point]));
    at += character.size();
  }
  return bytes;
}

}  // namespace syncline::text
