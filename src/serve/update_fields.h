// What the routes that change weights read and answer alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "http/server.h"
#include "serve/fields.h"
#include "serve/front.h"
#include "update/weights.h"

namespace syncline::serve {

// "all", "target" or "draft"; anything else is an error of `fields`.
void ReadSelector(Fields& fields, std::optional<update::Selector>& out);

// What an update came to, as members of a reply.
base::Json::Object ReportFields(const update::UpdateReport& report);

// The reply to an update from tensors that came to `result`, which is counted. In a session the label
// waits for the session's end. `success`: the message of one that went well, without the label.
http::Response TensorReply(Front& front, const base::Result<update::UpdateReport>& result,
                           std::string success, const std::optional<std::string>& label);

base::Json NameList(const std::vector<std::string>& names);

}  // namespace syncline::serve
