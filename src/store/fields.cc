#include "store/fields.h"

#include <fmt/format.h>

namespace syncline::store {

base::Result<std::uint64_t> NumberIn(const base::Json& json, std::string_view name) {
  const base::Json* value = json.Find(name);
  if (value != nullptr && value->unsigned_integer() != nullptr) return *value->unsigned_integer();
  return base::Fail(base::Code::kCorrupt,
                    fmt::format("\"{}\" is missing or not an unsigned integer", name));
}

}  // namespace syncline::store
