#include "objects/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr int kMaxDepth = 16;
constexpr int kMaxElements = 100'000;  // a page of a list has 1000 objects of about ten
constexpr std::string_view kBlanks = " \t\r\n";

bool IsBlank(char c) { return kBlanks.find(c) != std::string_view::npos; }

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == ':' || static_cast<unsigned char>(c) >= 0x80;
}

// False for what is no character.
bool AppendUtf8(std::uint32_t code, std::string& text) {
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  const auto byte = [&](std::uint32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
  return true;
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Result<XmlElement> Document() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    SYNCLINE_TRY(SkipMisc());
    XmlElement root;
    SYNCLINE_TRY(Element(root, 1));
    SYNCLINE_TRY(SkipMisc());
    if (at_ != text_.size()) return Bad("something after the root element");
    return root;
  }

 private:
  std::unexpected<base::Error> Bad(std::string_view what) const {
    return Fail(Code::kCorrupt, fmt::format("not well-formed XML at offset {}: {}", at_, what));
  }
  std::string_view Rest() const { return text_.substr(at_); }
  void SkipBlanks() {
    while (at_ < text_.size() && IsBlank(text_[at_])) ++at_;
  }
  bool Accept(std::string_view token) {
    if (!Rest().starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  Status SkipPast(std::string_view end) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return Bad(fmt::format("no '{}'", end));
    at_ = found + end.size();
    return {};
  }
  // Blanks, comments and processing instructions.
  Status SkipMisc() {
    while (true) {
      SkipBlanks();
      if (Accept("<!--")) {
        SYNCLINE_TRY(SkipPast("-->"));
      } else if (Accept("<?")) {
        SYNCLINE_TRY(SkipPast("?>"));
      } else {
        return {};
      }
    }
  }

  Result<std::string> Name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && IsNameCharacter(text_[at_])) ++at_;
    if (at_ == begin) return Bad("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Status SkipAttributes() {
    while (true) {
      SkipBlanks();
      if (Rest().starts_with('>') || Rest().starts_with("/>")) return {};
      SYNCLINE_TRY(Name());
      SkipBlanks();
      if (!Accept("=")) return Bad("expected '='");
      SkipBlanks();
      const std::string_view quote = Rest().substr(0, 1);
      if (quote != "\"" && quote != "'") return Bad("expected a quoted value");
      ++at_;
      SYNCLINE_TRY(SkipPast(quote));
    }
  }

  Status Reference(std::string& text) {
    const std::size_t end = text_.find(';', at_);
    if (end == std::string_view::npos || end - at_ > 12) return Bad("'&' without ';'");
    std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    constexpr std::pair<std::string_view, char> kNamed[] = {
        {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [known, character] : kNamed) {
      if (name != known) continue;
      text += character;
      at_ = end + 1;
      return {};
    }
    if (!name.starts_with('#')) return Bad("an entity that is not known");
    const int radix = name.starts_with("#x") ? 16 : 10;
    name.remove_prefix(radix == 16 ? 2 : 1);
    std::uint32_t code = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), code, radix);
    if (error != std::errc() || rest != name.data() + name.size() || !AppendUtf8(code, text)) {
      return Bad("a reference to no character");
    }
    at_ = end + 1;
    return {};
  }

  // From '<' to the end of the element.
  Status Element(XmlElement& element, int depth) {
    if (depth > kMaxDepth) return Bad("nested too deeply");
    if (++elements_ > kMaxElements) return Bad("too many elements");
    if (Rest().starts_with("<!")) return Bad("a document type");
    if (!Accept("<")) return Bad("expected an element");
    SYNCLINE_ASSIGN(const std::string name, Name());
    element.name = name.substr(name.rfind(':') + 1);
    SYNCLINE_TRY(SkipAttributes());
    if (Accept("/>")) return {};
    ++at_;  // '>'
    while (true) {
      if (at_ == text_.size()) return Bad(fmt::format("'{}' does not end", name));
      if (Accept("</")) break;
      if (Accept("<!--")) {
        SYNCLINE_TRY(SkipPast("-->"));
      } else if (Accept("<![CDATA[")) {
        const std::size_t begin = at_;
        SYNCLINE_TRY(SkipPast("]]>"));
        element.text += text_.substr(begin, at_ - 3 - begin);
      } else if (Rest().starts_with('<')) {
        SYNCLINE_TRY(Element(element.children.emplace_back(), depth + 1));
      } else if (Rest().starts_with('&')) {
        SYNCLINE_TRY(Reference(element.text));
      } else {
        const std::size_t end = std::min(text_.find_first_of("<&", at_), text_.size());
        element.text += text_.substr(at_, end - at_);
        at_ = end;
      }
    }
    if (!element.children.empty()) element.text.clear();
    SYNCLINE_ASSIGN(const std::string closed, Name());
    if (closed != name) return Bad(fmt::format("'{}' ends as '{}'", name, closed));
    SkipBlanks();
    return Accept(">") ? Status() : Bad("expected '>'");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int elements_ = 0;
};

}  // namespace

const XmlElement* XmlElement::Child(std::string_view child) const {
  for (const XmlElement& one : children) {
    if (one.name == child) return &one;
  }
  return nullptr;
}

std::string XmlElement::ChildText(std::string_view child) const {
  const XmlElement* found = Child(child);
  return found == nullptr ? "" : found->text;
}

Result<XmlElement> ParseXml(std::string_view text) { return Scanner(text).Document(); }

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace syncline::objects
