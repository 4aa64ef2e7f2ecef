// Log lines on standard error: time, level, text. The level is taken from SYNCLINE_LOG (debug,
// info, warning, error, off), default warning, at the first line. Thread-safe.
#pragma once

#include <string_view>

namespace syncline::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void Log(LogLevel level, std::string_view text);
bool LogEnabled(LogLevel level);

}  // namespace syncline::base
