#include "delta/encoding.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace syncline::delta {
namespace {

constexpr std::array<std::pair<Encoding, std::string_view>, 3> kNames = {{
    {Encoding::kXor, "xor"},
    {Encoding::kOverwrite, "overwrite"},
    {Encoding::kCompact, "compact"},
}};

}  // namespace

std::optional<Encoding> FindEncoding(std::string_view name) {
  for (const auto& [encoding, known] : kNames) {
    if (name == known) return encoding;
  }
  return std::nullopt;
}

std::string_view Name(Encoding encoding) {
  return kNames[static_cast<std::size_t>(encoding)].second;
}

base::Result<EncodingChoice> ChooseEncoding(std::string_view name, double link_gbps) {
  if (!(link_gbps >= 0)) {
    return base::Fail(base::Code::kInvalidArgument,
                      fmt::format("a link of {} Gbit/s: expected 0 or more", link_gbps));
  }
  if (const auto encoding = FindEncoding(name)) {
    return EncodingChoice(*encoding, CompactForm::kClasses, link_gbps);
  }
  if (name == "compact-gap") {
    return EncodingChoice(Encoding::kCompact, CompactForm::kGaps, link_gbps);
  }
  if (name == "auto") return EncodingChoice(Encoding::kCompact, CompactForm::kAuto, link_gbps);
  return base::Fail(base::Code::kInvalidArgument,
                    fmt::format("unknown encoding \"{}\": expected xor, overwrite, compact, "
                                "compact-gap or auto",
                                name));
}

}  // namespace syncline::delta
