// Reading the fields of a configuration: a field that is missing or null leaves the value as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace syncline::model {

// kCorrupt, naming the field, where it is of another kind or does not fit.
base::Status ReadField(const base::Json& object, std::string_view name, double& value);
base::Status ReadField(const base::Json& object, std::string_view name, std::uint32_t& value);
base::Status ReadField(const base::Json& object, std::string_view name, bool& value);
base::Status ReadField(const base::Json& object, std::string_view name, std::string& value);
base::Status ReadField(const base::Json& object, std::string_view name,
                       std::vector<std::uint32_t>& value);

}  // namespace syncline::model
