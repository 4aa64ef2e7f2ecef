// A user's command as a hook.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace syncline::cli {

// Runs `command` by /bin/sh and waits for it, with SYNCLINE_STORE and SYNCLINE_VERSION ("latest"
// where there is no number) in its environment; what it prints goes to standard error. kIo if it
// does not end with 0.
base::Status RunHook(const std::string& command, const std::string& store,
                     std::optional<std::uint64_t> version);

}  // namespace syncline::cli
