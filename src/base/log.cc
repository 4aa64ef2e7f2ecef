#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace syncline::base {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    auto made = std::make_shared<spdlog::logger>("syncline", std::move(sink));
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    const char* level = std::getenv("SYNCLINE_LOG");
    made->set_level(level == nullptr ? spdlog::level::warn
                                     : spdlog::level::from_str(std::string(level)));
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void Log(LogLevel level, std::string_view text) { Logger().log(ToSpdlog(level), "{}", text); }

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

}  // namespace syncline::base
