// Reads the members of a JSON object the lax way that SGLang's and OpenAI's clients count on.
//
// Unknown members are ignored; null and a missing member leave the default; a numeric string passes
// for a number, a whole number for an integer of any spelling (3, 3.0, "3"). Anything else of the
// wrong kind is an error that names the member, with what was expected and what was found.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace syncline::serve {

// A JSON value in a few words, for messages: `"abc"`, `3.5`, `true`, `null`, `a list`, `an object`.
std::string Describe(const base::Json& json);

// Nothing was asked for: null, false, an empty string, list or object, or a list of such values.
bool IsNothing(const base::Json& json);

// Each reads a value into `out`, or returns "expected X, got Y" and leaves `out` as it was.
using Fault = std::optional<std::string>;
Fault ReadValue(const base::Json& json, bool& out);
Fault ReadValue(const base::Json& json, double& out);
Fault ReadValue(const base::Json& json, std::string& out);
Fault ReadInteger(const base::Json& json, std::int64_t low, std::int64_t high, std::int64_t& out);

template <std::integral T>
Fault ReadValue(const base::Json& json, T& out) {
  constexpr std::int64_t kMax = INT64_MAX;
  const std::int64_t low = std::in_range<std::int64_t>(std::numeric_limits<T>::min())
                               ? static_cast<std::int64_t>(std::numeric_limits<T>::min())
                               : 0;
  const std::int64_t high = std::in_range<std::int64_t>(std::numeric_limits<T>::max())
                                ? static_cast<std::int64_t>(std::numeric_limits<T>::max())
                                : kMax;
  std::int64_t value = 0;
  if (Fault fault = ReadInteger(json, low, high, value)) return fault;
  out = static_cast<T>(value);
  return std::nullopt;
}

template <typename T>
Fault ReadValue(const base::Json& json, std::vector<T>& out) {
  const base::Json::Array* array = json.array();
  if (array == nullptr) return "expected a list, got " + Describe(json);
  std::vector<T> values(array->size());
  for (std::size_t i = 0; i < array->size(); ++i) {
    if (Fault fault = ReadValue((*array)[i], values[i])) {
      return "item " + std::to_string(i) + ": " + *fault;
    }
  }
  out = std::move(values);
  return std::nullopt;
}

template <typename T>
Fault ReadValue(const base::Json& json, std::optional<T>& out) {
  T value{};
  if (Fault fault = ReadValue(json, value)) return fault;
  out = std::move(value);
  return std::nullopt;
}

// The members of one object. The first error is kept, and reading goes on, so that a handler reads
// everything and then asks once.
class Fields {
 public:
  // `object` must outlive this. `where` stands before each name in messages ("sampling_params.").
  explicit Fields(const base::Json& object, std::string where = "");

  // The member, or null where it is missing or JSON null.
  const base::Json* Find(std::string_view name) const;

  // Leaves `out` as it is where the member is missing or null.
  template <typename T>
  void Read(std::string_view name, T& out) {
    if (const base::Json* found = Find(name)) Check(name, ReadValue(*found, out));
  }
  // As Read, but a missing member is an error.
  template <typename T>
  void Require(std::string_view name, T& out) {
    if (Find(name) == nullptr) return Refuse(name, "is required");
    Read(name, out);
  }
  // The same for a path of a file, which may hold no NUL.
  void RequirePath(std::string_view name, std::string& out);

  // For item `index` of `count`: the member is one value for all of them, or a list with one for
  // each, in which null leaves `out` as it is.
  template <typename T>
  void ReadFor(std::size_t index, std::size_t count, std::string_view name, T& out) {
    const base::Json* found = FindFor(index, count, name, false);
    if (found != nullptr) Check(name, ReadValue(*found, out));
  }
  template <typename T>
  void ReadFor(std::size_t index, std::size_t count, std::string_view name, std::vector<T>& out) {
    const base::Json* found = FindFor(index, count, name, true);
    if (found != nullptr) Check(name, ReadValue(*found, out));
  }
  // What is read for that item; null where there is nothing. `lists`: the values are lists.
  const base::Json* FindFor(std::size_t index, std::size_t count, std::string_view name,
                            bool lists);

  // Where the member asks for anything: an error "NAME: WHY".
  void Unsupported(std::string_view name, std::string_view why = "is not supported");

  void Refuse(std::string_view name, std::string_view why);
  // Takes over the error of an object inside this one.
  void Adopt(const Fields& inner) {
    if (status_) status_ = inner.status_;
  }
  const base::Status& status() const { return status_; }

 private:
  void Check(std::string_view name, const Fault& fault) {
    if (fault) Refuse(name, *fault);
  }

  const base::Json* object_;
  std::string where_;
  base::Status status_;
};

}  // namespace syncline::serve
