#include "base/bytes.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <array>

namespace syncline::base {

std::string ToHex(std::span<const std::uint8_t> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::string FromHex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string raw;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    raw.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  return raw;
}

std::string RandomHex(std::size_t bytes) {
  std::array<std::uint8_t, 256> random = {};
  const std::size_t size = std::min(bytes, random.size());
  // So few bytes come whole; it fails only before the kernel's pool is ready, and then is asked
  // again.
  while (getrandom(random.data(), size, 0) != static_cast<ssize_t>(size)) {
  }
  return ToHex(std::span(random).first(size));
}

std::string HumanBytes(std::uint64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace syncline::base
