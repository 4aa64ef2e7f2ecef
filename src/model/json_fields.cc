#include "model/json_fields.h"

#include <fmt/core.h>

#include <limits>
#include <variant>

namespace syncline::model {
namespace {

using base::Json;

const Json* FindValue(const Json& object, std::string_view name) {
  const Json* field = object.Find(name);
  return field == nullptr || field->is_null() ? nullptr : field;
}

base::Status WrongKind(const Json& found, std::string_view name, std::string_view expected) {
  return base::Fail(base::Code::kCorrupt, fmt::format("{}: expected {}, found {}", name, expected,
                                                      ToText(found).substr(0, 80)));
}

}  // namespace

base::Status ReadField(const Json& object, std::string_view name, double& value) {
  const Json* field = FindValue(object, name);
  if (field == nullptr) return {};
  if (const auto* real = std::get_if<double>(&field->value())) {
    value = *real;
  } else if (const auto* positive = field->unsigned_integer()) {
    value = static_cast<double>(*positive);
  } else if (const auto* negative = std::get_if<std::int64_t>(&field->value())) {
    value = static_cast<double>(*negative);
  } else {
    return WrongKind(*field, name, "a number");
  }
  return {};
}

base::Status ReadField(const Json& object, std::string_view name, std::uint32_t& value) {
  const Json* field = FindValue(object, name);
  if (field == nullptr) return {};
  const auto* number = field->unsigned_integer();
  if (number == nullptr || *number > std::numeric_limits<std::uint32_t>::max()) {
    return WrongKind(*field, name, "a whole number below 2^32");
  }
  value = static_cast<std::uint32_t>(*number);
  return {};
}

base::Status ReadField(const Json& object, std::string_view name, bool& value) {
  const Json* field = FindValue(object, name);
  if (field == nullptr) return {};
  const auto* flag = std::get_if<bool>(&field->value());
  if (flag == nullptr) return WrongKind(*field, name, "true or false");
  value = *flag;
  return {};
}

base::Status ReadField(const Json& object, std::string_view name, std::string& value) {
  const Json* field = FindValue(object, name);
  if (field == nullptr) return {};
  if (field->string() == nullptr) return WrongKind(*field, name, "a text");
  value = *field->string();
  return {};
}

base::Status ReadField(const Json& object, std::string_view name,
                       std::vector<std::uint32_t>& value) {
  const Json* field = FindValue(object, name);
  if (field == nullptr) return {};
  if (field->array() == nullptr) return WrongKind(*field, name, "a list");
  value.clear();
  for (const Json& entry : *field->array()) {
    const auto* number = entry.unsigned_integer();
    if (number == nullptr || *number > std::numeric_limits<std::uint32_t>::max()) {
      return WrongKind(entry, name, "whole numbers below 2^32");
    }
    value.push_back(static_cast<std::uint32_t>(*number));
  }
  return {};
}

}  // namespace syncline::model
