// Who may call which route.
//
// Two keys, either of which may be missing. A key is sent as `Authorization: Bearer KEY` or
// `x-api-key: KEY`.
//
//   level            no keys   only api   only admin   both
//   kOpen            open      open       open         open
//   kNormal          open      api        open         api
//   kAdminOptional   open      api        admin        admin
//   kAdminForce      nobody    nobody     admin        admin
#pragma once

#include <string>
#include <string_view>

#include "http/server.h"

namespace syncline::serve {

// What declares no level has the first, strictest one.
enum class Level {
  kAdminForce,     // never without the admin's key
  kAdminOptional,  // changes the engine, or gives its weights away
  kNormal,         // reads and generates
  kOpen,           // health and metrics, for probes
};

struct Keys {
  std::string api;    // empty: none
  std::string admin;  // empty: none

  bool none() const { return api.empty() && admin.empty(); }
};

// Compares in a time that does not depend on where the keys differ.
bool SameKey(std::string_view given, std::string_view expected);

enum class Access {
  kGranted,
  kUnauthorized,  // 401: the right key is missing
  kForbidden,     // 403: no key would do
};

Access AccessTo(const Keys& keys, Level level, const http::Request& request);

// Of a path that is in no table. Probes may ask for what this server does not have, so what begins
// like their paths is open, as in SGLang. Nothing lies behind any other; that it is not there is
// told only to whom the engine may be changed by.
Level LevelOfUnknown(std::string_view path);

}  // namespace syncline::serve
