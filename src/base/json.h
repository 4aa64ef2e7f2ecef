// JSON text to and from values, strictly: a key that appears twice in one object, a number that
// does not fit, text after the value, invalid UTF-8 and nesting beyond a limit are errors. Members
// keep the order in which they were written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace syncline::base {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;
  // Integers that fit are kept exactly: non-negative ones as uint64, negative ones as int64.
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string,
                             Array, Object>;

  Json() : value_(nullptr) {}
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();
  Json(Value value) : value_(std::move(value)) {}  // NOLINT: a Json is made from any of its values
  Json(const char* text) : value_(std::string(text)) {}       // NOLINT
  Json(std::string_view text) : value_(std::string(text)) {}  // NOLINT
  template <typename T>
    requires(std::is_constructible_v<Value, T> && !std::is_same_v<std::remove_cvref_t<T>, Json>)
  Json(T&& value) : value_(std::forward<T>(value)) {}  // NOLINT

  const Value& value() const { return value_; }
  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const std::uint64_t* unsigned_integer() const { return std::get_if<std::uint64_t>(&value_); }

  // The member of that name; null if this is no object or has none. Linear in the number of
  // members.
  const Json* Find(std::string_view key) const;

 private:
  Value value_;
};

// kCorrupt with the offset of the fault. `max_depth` counts arrays and objects.
Result<Json> ParseJson(std::string_view text, std::size_t max_depth = 32);

// Compact text, or with two spaces of indentation a level. Doubles are written shortest; NaN and
// infinity as null.
std::string ToText(const Json& json, bool indent = false);

}  // namespace syncline::base
