// What the routes that change weights read and answer alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "http/server.h"
#include "serve/fields.h"
#include "update/weights.h"

namespace syncline::serve {

// "all", "target" or "draft"; anything else is an error of `fields`.
void ReadSelector(Fields& fields, std::optional<update::Selector>& out);

// What an update came to, as members of a reply.
base::Json::Object ReportFields(const update::UpdateReport& report);

base::Json NameList(const std::vector<std::string>& names);

}  // namespace syncline::serve
