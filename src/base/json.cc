#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

namespace syncline::base {
namespace {

// Receives the events of Boost.JSON's parser and builds a Json. `stack_` holds the containers that
// are open, innermost last.
class Builder {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the parser asks for these names
  constexpr static std::size_t max_object_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_array_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_key_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_string_size = static_cast<std::size_t>(-1);
  // NOLINTEND(readability-identifier-naming)
  using error_code = boost::system::error_code;
  using string_view = boost::json::string_view;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return Open(Json::Object{}); }
  bool on_array_begin(error_code&) { return Open(Json::Array{}); }
  bool on_array_end(std::size_t, error_code&) { return Close(); }
  bool on_object_end(std::size_t, error_code& error) {
    const auto& members = std::get<Json::Object>(stack_.back().value);
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const Json::Member& member : members) keys.emplace_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      duplicate_ = *twice;
      error = boost::json::error::exception;  // any error stops the parser; ParseJson says what
      return false;
    }
    return Close();
  }
  bool on_key_part(string_view part, std::size_t, error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(string_view part, std::size_t, error_code&) {
    text_.append(part.data(), part.size());
    stack_.back().key = std::exchange(text_, {});
    return true;
  }
  bool on_string_part(string_view part, std::size_t, error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(string_view part, std::size_t, error_code&) {
    text_.append(part.data(), part.size());
    return Add(std::exchange(text_, {}));
  }
  bool on_number_part(string_view part, error_code&) {
    number_.append(part.data(), part.size());
    return true;
  }
  bool on_int64(std::int64_t number, string_view text, error_code&) {
    number_.clear();
    if (number == 0 && text.starts_with('-')) return Add(-0.0);  // no integer has this value
    if (number >= 0) return Add(static_cast<std::uint64_t>(number));
    return Add(number);
  }
  bool on_uint64(std::uint64_t number, string_view, error_code&) {
    number_.clear();
    return Add(number);
  }
  // The parser's own value may be off in the last digit, so the text is read once more.
  bool on_double(double number, string_view text, error_code& error) {
    number_.append(text.data(), text.size());
    double exact = number;  // stays if it is out of range: infinite, or too small
    std::from_chars(number_.data(), number_.data() + number_.size(), exact);
    number_.clear();
    if (std::isfinite(exact)) return Add(exact);
    error = boost::json::error::exponent_overflow;
    return false;
  }
  bool on_bool(bool value, error_code&) { return Add(value); }
  bool on_null(error_code&) { return Add(nullptr); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  Json Take() { return std::move(root_); }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  struct Container {
    Json::Value value;
    std::string key;
  };

  bool Open(Json::Value empty) {
    stack_.push_back({.value = std::move(empty), .key = {}});
    return true;
  }
  bool Close() {
    Json::Value value = std::move(stack_.back().value);
    stack_.pop_back();
    return Add(std::move(value));
  }
  bool Add(Json::Value value) {
    if (stack_.empty()) {
      root_ = Json(std::move(value));
    } else if (auto* array = std::get_if<Json::Array>(&stack_.back().value)) {
      array->emplace_back(std::move(value));
    } else {
      std::get<Json::Object>(stack_.back().value)
          .emplace_back(std::move(stack_.back().key), Json(std::move(value)));
    }
    return true;
  }

  std::vector<Container> stack_;
  std::string text_;
  std::string number_;  // as far as it was read
  std::optional<std::string> duplicate_;
  Json root_;
};

void AppendQuoted(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

class Writer {
 public:
  Writer(std::string& out, bool indent) : out_(out), indent_(indent) {}

  void Write(const Json& json, std::size_t depth) {
    std::visit([&](const auto& value) { WriteValue(value, depth); }, json.value());
  }

 private:
  void WriteValue(std::nullptr_t, std::size_t) { out_ += "null"; }
  void WriteValue(bool value, std::size_t) { out_ += value ? "true" : "false"; }
  void WriteValue(std::int64_t value, std::size_t) { out_ += fmt::to_string(value); }
  void WriteValue(std::uint64_t value, std::size_t) { out_ += fmt::to_string(value); }
  void WriteValue(double value, std::size_t) {
    out_ += std::isfinite(value) ? fmt::to_string(value) : "null";
  }
  void WriteValue(const std::string& value, std::size_t) { AppendQuoted(out_, value); }
  void WriteValue(const Json::Array& array, std::size_t depth) {
    WriteAll(array, '[', ']', depth, [&](const Json& item) { Write(item, depth + 1); });
  }
  void WriteValue(const Json::Object& object, std::size_t depth) {
    WriteAll(object, '{', '}', depth, [&](const Json::Member& member) {
      AppendQuoted(out_, member.first);
      out_ += indent_ ? ": " : ":";
      Write(member.second, depth + 1);
    });
  }

  template <typename Items, typename WriteItem>
  void WriteAll(const Items& items, char open, char close, std::size_t depth,
                const WriteItem& write) {
    out_.push_back(open);
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.push_back(',');
      first = false;
      NewLine(depth + 1);
      write(item);
    }
    if (!first) NewLine(depth);
    out_.push_back(close);
  }
  void NewLine(std::size_t depth) {
    if (!indent_) return;
    out_.push_back('\n');
    out_.append(2 * depth, ' ');
  }

  std::string& out_;
  bool indent_;
};

}  // namespace

Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

const Json* Json::Find(std::string_view key) const {
  if (const Object* members = object()) {
    for (const Member& member : *members) {
      if (member.first == key) return &member.second;
    }
  }
  return nullptr;
}

Result<Json> ParseJson(std::string_view text, std::size_t max_depth) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  boost::json::basic_parser<Builder> parser(options);
  boost::system::error_code error;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (const auto& name = parser.handler().duplicate()) {
    return Fail(Code::kCorrupt, fmt::format("invalid JSON: duplicate name \"{}\"", *name));
  }
  if (!error && used < text.size()) error = boost::json::error::extra_data;
  if (error) {
    return Fail(Code::kCorrupt, fmt::format("invalid JSON: {} at byte {}", error.message(), used));
  }
  return parser.handler().Take();
}

std::string ToText(const Json& json, bool indent) {
  std::string text;
  Writer(text, indent).Write(json, 0);
  return text;
}

}  // namespace syncline::base
