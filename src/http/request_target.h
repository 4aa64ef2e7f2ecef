// The target of a request line: path and query.
#pragma once

#include <string_view>

#include "base/error.h"
#include "http/server.h"

namespace syncline::http {

// Sets path and query of `request`. Takes "/path?query", "http://host/path?query" and "*". In the
// query "+" stands for a space. kInvalidArgument for anything else and for a "%" without two
// hexadecimal digits.
base::Status ParseTarget(std::string_view target, Request& request);

}  // namespace syncline::http
