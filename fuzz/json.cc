// base::ParseJson.
//
// - Accepts what the grammar of RFC 8259 accepts, of valid UTF-8, with names that differ, numbers
//   that fit and nesting within the limit; a second, plain reader decides that here.
// - What was read is written and read back as the same value.
// - Memory stays within a multiple of the text's size.
#include "base/json.h"

#include <cctype>
#include <cmath>

#include "support.h"

namespace syncline::fuzz {
namespace {

using base::Json;

constexpr std::size_t kMaxDepth = 32;

// Does a text follow the grammar? Says nothing of names that stand twice, nor of the size of
// numbers.
class Grammar {
 public:
  explicit Grammar(std::string_view text) : text_(text) {}

  bool Accepts() {
    const bool value = Value(0);
    Space();
    return value && at_ == text_.size();
  }

 private:
  bool Value(std::size_t depth) {
    Space();
    if (Take('{')) return depth < kMaxDepth && Items('}', true, depth + 1);
    if (Take('[')) return depth < kMaxDepth && Items(']', false, depth + 1);
    if (Take('"')) return RestOfString();
    if (Word("true") || Word("false") || Word("null")) return true;
    return Number();
  }

  bool Items(char close, bool named, std::size_t depth) {
    Space();
    if (Take(close)) return true;
    while (true) {
      if (named) {
        Space();
        if (!Take('"') || !RestOfString()) return false;
        Space();
        if (!Take(':')) return false;
      }
      if (!Value(depth)) return false;
      Space();
      if (Take(close)) return true;
      if (!Take(',')) return false;
    }
  }

  bool RestOfString() {
    while (at_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[at_++]);
      if (c == '"') return true;
      if (c < 0x20) return false;
      if (c == '\\') {
        if (!Escape()) return false;
      } else if (c >= 0x80 && !RestOfUtf8(c)) {
        return false;
      }
    }
    return false;
  }

  bool Escape() {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    const int first = Hex4();
    if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return false;
    if (first < 0xD800 || first >= 0xE000) return true;
    if (!Take('\\') || !Take('u')) return false;
    const int second = Hex4();
    return second >= 0xDC00 && second < 0xE000;
  }

  int Hex4() {
    int value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0) {
        return -1;
      }
      const char c = text_[at_];
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }

  // The table of well-formed sequences of the Unicode standard (3-7).
  bool RestOfUtf8(unsigned char lead) {
    if (lead < 0xC2 || lead > 0xF4) return false;
    const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    for (int i = 0; i < more; ++i) {
      if (at_ == text_.size()) return false;
      const auto c = static_cast<unsigned char>(text_[at_++]);
      unsigned low = 0x80;
      unsigned high = 0xBF;
      if (i == 0 && lead == 0xE0) low = 0xA0;
      if (i == 0 && lead == 0xED) high = 0x9F;
      if (i == 0 && lead == 0xF0) low = 0x90;
      if (i == 0 && lead == 0xF4) high = 0x8F;
      if (c < low || c > high) return false;
    }
    return true;
  }

  bool Number() {
    Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      return Digits();
    }
    return true;
  }

  bool Digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > begin;
  }

  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != text_.npos) ++at_;
  }
  bool Take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool AllFinite(const Json& json) {
  if (const auto* number = std::get_if<double>(&json.value())) return std::isfinite(*number);
  if (const auto* array = json.array()) {
    for (const Json& item : *array) {
      if (!AllFinite(item)) return false;
    }
  }
  if (const auto* object = json.object()) {
    for (const auto& [key, value] : *object) {
      if (!AllFinite(value)) return false;
    }
  }
  return true;
}

void Check(std::string_view text) {
  const MemoryWatch watch;
  const auto json = base::ParseJson(text, kMaxDepth);
  Must(watch.peak() <= 65536 + 160 * text.size(), "memory is bounded by the text");
  if (!json) {
    Must(json.error().code == base::Code::kCorrupt, "a text that is refused is corrupt");
    const std::string& message = json.error().message;
    const bool twice = message.find("duplicate name") != std::string::npos;
    const bool number = message.find("number") != std::string::npos ||
                        message.find("exponent") != std::string::npos;
    Must(twice || number || !Grammar(text).Accepts(),
         "a text of the grammar is refused for a name or a number only");
    return;
  }
  Must(Grammar(text).Accepts(), "what is accepted follows the grammar");
  Must(AllFinite(*json), "numbers fit");
  for (const bool indent : {false, true}) {
    const std::string written = ToText(*json, indent);
    const auto again = base::ParseJson(written, kMaxDepth);
    Must(again.has_value(), "what is written can be read");
    Must(ToText(*again, indent) == written, "a value survives writing and reading");
    Must(ToText(*again) == ToText(*json), "indentation changes nothing");
  }
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  syncline::fuzz::Check(syncline::fuzz::Text(data, size));
  return 0;
}
