#include "store/latest.h"

#include <fmt/format.h>

#include "base/json.h"
#include "store/fields.h"
#include "store/file_hash.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;

constexpr std::uint64_t kFormat = 1;

Result<std::string> Hex(const Json& json, std::string_view name, std::size_t digits) {
  const Json* value = json.Find(name);
  if (value != nullptr && value->string() != nullptr && IsLowerHex(*value->string(), digits)) {
    return *value->string();
  }
  return Fail(Code::kCorrupt, fmt::format("\"{}\" is not {} lower-case hex digits", name, digits));
}

}  // namespace

std::string LatestText(const Latest& latest) {
  return ToText(Json(Json::Object{{"format", kFormat},
                                  {"run", latest.run},
                                  {"version", latest.version},
                                  {"identity", latest.identity}})) +
         "\n";
}

Result<Latest> ParseLatest(std::string_view text) {
  if (text.size() > kMaxLatestBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{} bytes, the limit is {}", text.size(), kMaxLatestBytes));
  }
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_ASSIGN(const std::uint64_t format, NumberIn(json, "format"));
  if (format != kFormat) {
    return Fail(Code::kIncompatible, fmt::format("format {}, expected {}", format, kFormat));
  }
  Latest latest;
  SYNCLINE_ASSIGN(latest.run, Hex(json, "run", 32));
  SYNCLINE_ASSIGN(latest.version, NumberIn(json, "version"));
  SYNCLINE_ASSIGN(latest.identity, Hex(json, "identity", 64));
  return latest;
}

Result<std::optional<Latest>> ReadLatest(base::FileSystem& files, const std::string& store) {
  const std::string path = base::JoinPath(store, kLatestName);
  SYNCLINE_ASSIGN(const auto text, base::ReadTextIfThere(files, path, kMaxLatestBytes));
  if (!text) return std::nullopt;
  Result<Latest> latest = ParseLatest(*text);
  if (!latest) return Annotate(std::move(latest).error(), path);
  return *std::move(latest);
}

}  // namespace syncline::store
