// Fields of the JSON files that a store holds.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace syncline::store {

// kCorrupt, with the name, where it is missing or something else.
base::Result<std::uint64_t> NumberIn(const base::Json& json, std::string_view name);

}  // namespace syncline::store
