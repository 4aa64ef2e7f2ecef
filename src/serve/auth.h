// Who may call which route.
//
// Two keys, either of which may be missing. A key is sent as `Authorization: Bearer KEY` or
// `x-api-key: KEY`.
//
//   level            no keys   only api   only admin   both
//   kNormal          open      api        open         api
//   kAdminOptional   open      api        admin        admin
#pragma once

#include <string>
#include <string_view>

#include "http/server.h"

namespace syncline::serve {

enum class Level {
  kOpen,           // health and metrics, for probes
  kNormal,         // reads and generates
  kAdminOptional,  // changes the engine
};

struct Keys {
  std::string api;    // empty: none
  std::string admin;  // empty: none
};

// Compares in a time that does not depend on where the keys differ.
bool SameKey(std::string_view given, std::string_view expected);

bool IsAllowed(const Keys& keys, Level level, const http::Request& request);

}  // namespace syncline::serve
