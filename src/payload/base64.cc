#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "payload/payload.h"

namespace syncline::payload {
namespace {

constexpr std::uint8_t kNoDigit = 0xff;

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::uint8_t, 256> MakeDigits() {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return digits;
}

constexpr std::array<std::uint8_t, 256> kDigits = MakeDigits();

}  // namespace

// RFC 4648, section 4. Four characters are three bytes; the last group may end in one or two '='.
base::Result<std::vector<std::byte>> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) {
    return base::Fail(base::Code::kInvalidArgument,
                      fmt::format("base64: {} characters, expected a multiple of 4", text.size()));
  }
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const std::uint8_t digit = pad ? 0 : kDigits[static_cast<unsigned char>(text[i])];
    if (digit == kNoDigit) {
      return base::Fail(base::Code::kInvalidArgument,
                        fmt::format("base64: character {} is not of the alphabet", i));
    }
    bits = bits << 6 | digit;
    if (i % 4 != 3) continue;
    bytes.push_back(static_cast<std::byte>(bits >> 16));
    bytes.push_back(static_cast<std::byte>(bits >> 8));
    bytes.push_back(static_cast<std::byte>(bits));
    bits = 0;
  }
  for (std::size_t i = 0; i < padding; ++i) {
    if (bytes.back() != std::byte{0}) {
      return base::Fail(base::Code::kInvalidArgument, "base64: bits after the last byte");
    }
    bytes.pop_back();
  }
  return bytes;
}

std::string EncodeBase64(base::ByteSpan bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace syncline::payload
