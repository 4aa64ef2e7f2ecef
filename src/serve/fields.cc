#include "serve/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace syncline::serve {
namespace {

using base::Json;

constexpr std::size_t kShownText = 40;

std::string Expected(std::string_view what, const Json& json) {
  return fmt::format("expected {}, got {}", what, Describe(json));
}

template <typename T>
std::optional<T> ParseWhole(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

// The integer that a number or a numeric string stands for.
std::optional<std::int64_t> AsInteger(const Json& json) {
  if (const auto* number = std::get_if<std::int64_t>(&json.value())) return *number;
  if (const auto* number = json.unsigned_integer()) {
    if (std::in_range<std::int64_t>(*number)) return static_cast<std::int64_t>(*number);
    return std::nullopt;
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers up to it are exact
  if (const auto* number = std::get_if<double>(&json.value())) {
    if (std::trunc(*number) != *number || std::abs(*number) > kExact) return std::nullopt;
    return static_cast<std::int64_t>(*number);
  }
  if (const std::string* text = json.string()) return ParseWhole<std::int64_t>(*text);
  return std::nullopt;
}

}  // namespace

std::string Describe(const Json& json) {
  if (json.array() != nullptr) return "a list";
  if (json.object() != nullptr) return "an object";
  const std::string* text = json.string();
  if (text == nullptr || text->size() <= kShownText) return ToText(json);
  std::size_t cut = kShownText;  // not inside a character
  while (cut > 0 && (static_cast<unsigned char>((*text)[cut]) & 0xC0) == 0x80) --cut;
  return ToText(Json(text->substr(0, cut) + "..."));
}

bool IsNothing(const Json& json) {
  if (json.is_null()) return true;
  if (const auto* flag = std::get_if<bool>(&json.value())) return !*flag;
  if (const std::string* text = json.string()) return text->empty();
  if (const Json::Object* object = json.object()) return object->empty();
  const Json::Array* array = json.array();
  return array != nullptr && std::ranges::all_of(*array, IsNothing);
}

Fault ReadValue(const Json& json, bool& out) {
  if (const auto* flag = std::get_if<bool>(&json.value())) {
    out = *flag;
    return std::nullopt;
  }
  if (const std::string* text = json.string(); text && (*text == "true" || *text == "false")) {
    out = *text == "true";
    return std::nullopt;
  }
  const auto number = json.string() ? std::nullopt : AsInteger(json);
  if (number != 0 && number != 1) return Expected("a boolean", json);
  out = number == 1;
  return std::nullopt;
}

Fault ReadValue(const Json& json, double& out) {
  std::optional<double> value;
  if (const auto* number = std::get_if<double>(&json.value())) value = *number;
  if (const auto* number = std::get_if<std::int64_t>(&json.value())) {
    value = static_cast<double>(*number);
  }
  if (const auto* number = json.unsigned_integer()) value = static_cast<double>(*number);
  if (const std::string* text = json.string()) value = ParseWhole<double>(*text);
  if (!value || !std::isfinite(*value)) return Expected("a number", json);
  out = *value;
  return std::nullopt;
}

Fault ReadValue(const Json& json, std::string& out) {
  if (json.string() == nullptr) return Expected("a string", json);
  out = *json.string();
  return std::nullopt;
}

Fault ReadInteger(const Json& json, std::int64_t low, std::int64_t high, std::int64_t& out) {
  const std::optional<std::int64_t> value = AsInteger(json);
  if (!value) return Expected("an integer", json);
  if (*value < low || *value > high) {
    return Expected(fmt::format("an integer from {} to {}", low, high), json);
  }
  out = *value;
  return std::nullopt;
}

Fields::Fields(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {
  if (object.object() == nullptr) {
    std::string name = where_.empty() ? "the body" : where_.substr(0, where_.size() - 1);
    status_ = base::Fail(base::Code::kInvalidArgument,
                         fmt::format("{}: {}", name, Expected("an object", object)));
  }
}

const Json* Fields::Find(std::string_view name) const {
  const Json* found = object_->Find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

void Fields::RequirePath(std::string_view name, std::string& out) {
  Require(name, out);
  if (!status_) return;
  if (out.empty()) Refuse(name, "expected a path, got \"\"");
  if (out.find('\0') != std::string::npos) Refuse(name, "expected a path, got one with a NUL");
}

const Json* Fields::FindFor(std::size_t index, std::size_t count, std::string_view name,
                            bool lists) {
  const Json* found = Find(name);
  if (found == nullptr || found->array() == nullptr) return found;
  const Json::Array& list = *found->array();
  const auto is_list = [](const Json& item) { return item.array() != nullptr; };
  if (lists && std::ranges::none_of(list, is_list)) return found;  // one list for all
  if (list.size() != count) {
    Refuse(name, fmt::format("expected one value or {}, got {}", count, list.size()));
    return nullptr;
  }
  return list[index].is_null() ? nullptr : &list[index];
}

void Fields::Unsupported(std::string_view name, std::string_view why) {
  const Json* found = Find(name);
  if (found != nullptr && !IsNothing(*found)) Refuse(name, why);
}

void Fields::Refuse(std::string_view name, std::string_view why) {
  if (!status_) return;
  status_ = base::Fail(base::Code::kInvalidArgument, fmt::format("{}{}: {}", where_, name, why));
}

}  // namespace syncline::serve
