#include "text/utf8.h"

namespace syncline::text {
namespace {

// The bytes that a first byte asks for: how many follow, and the range of the second one (Unicode
// Standard, table 3-7; all further bytes are 80..BF).
struct Lead {
  std::size_t following;
  unsigned char low;
  unsigned char high;
};

// No character begins with this byte: following = 0.
Lead LeadOf(unsigned char first) {
  if (first < 0xC2) return {0, 0, 0};
  if (first < 0xE0) return {1, 0x80, 0xBF};
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first < 0xF0) return {2, 0x80, 0xBF};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  if (first < 0xF4) return {3, 0x80, 0xBF};
  if (first == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto first = static_cast<unsigned char>(bytes.front());
  if (first < 0x80) return {Kind::kWhole, 1};
  Lead lead = LeadOf(first);
  if (lead.following == 0) return {Kind::kInvalid, 1};
  for (std::size_t i = 1; i <= lead.following; ++i) {
    if (i == bytes.size()) return {Kind::kPartial, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < lead.low || byte > lead.high) return {Kind::kInvalid, i};
    lead.low = 0x80;
    lead.high = 0xBF;
  }
  return {Kind::kWhole, lead.following + 1};
}

std::size_t WholeUtf8(std::string_view bytes, Utf8Step& next) {
  std::size_t whole = 0;
  while (whole < bytes.size()) {
    next = NextUtf8(bytes.substr(whole));
    if (next.kind != Utf8Step::Kind::kWhole) return whole;
    whole += next.size;
  }
  next = {Utf8Step::Kind::kWhole, 0};
  return whole;
}

bool IsUtf8(std::string_view bytes) {
  Utf8Step next;
  return WholeUtf8(bytes, next) == bytes.size();
}

void TakeCertainUtf8(std::string& pending, std::string& text) {
  std::size_t done = 0;
  while (true) {
    const std::string_view rest = std::string_view(pending).substr(done);
    Utf8Step next;
    const std::size_t whole = WholeUtf8(rest, next);
    text += rest.substr(0, whole);
    done += whole;
    if (next.kind != Utf8Step::Kind::kInvalid) break;
    text += kReplacement;
    done += next.size;
  }
  pending.erase(0, done);
}

char32_t CodePoint(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (first < 0x80) return first;
  char32_t point = first & (0xFFU >> (character.size() + 1));
  for (const char byte : character.substr(1)) {
    point = point << 6 | (static_cast<unsigned char>(byte) & 0x3FU);
  }
  return point;
}

}  // namespace syncline::text
