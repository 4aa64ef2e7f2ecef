// Who can reach the server: only this machine, unless keys or the operator's word allow more.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/options.h"

namespace syncline::serve {

// The numeric addresses of a host name or address.
using Resolver = std::function<base::Result<std::vector<std::string>>(const std::string& host)>;
base::Result<std::vector<std::string>> ResolveBySystem(const std::string& host);

// The numeric address at which to listen for options.host: the first of its addresses.
//
// kInvalidArgument if other machines could reach one of them, no key is set, and
// options.allow_unauthenticated is false: whoever connects could replace the weights.
base::Result<std::string> AddressToListenAt(const Options& options, const Resolver& resolve);

// Of 127.0.0.0/8, or ::1. `address` is numeric.
bool IsLoopback(const std::string& address);

}  // namespace syncline::serve
