// syncline.latest.json: the newest version of a store, for readers that cannot list it. It moves
// after the version stands, so it may lag behind; what it names is whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace syncline::store {

inline constexpr std::string_view kLatestName = "syncline.latest.json";
inline constexpr std::uint64_t kMaxLatestBytes = 4096;

struct Latest {
  std::string run;  // as in the version's manifest
  std::uint64_t version = 0;
  std::string identity;  // of the version

  bool operator==(const Latest&) const = default;
};

std::string LatestText(const Latest& latest);
// kCorrupt for fields that are missing or wrong, kIncompatible for a format that we do not know.
base::Result<Latest> ParseLatest(std::string_view text);
// Nothing if the store has none.
base::Result<std::optional<Latest>> ReadLatest(base::FileSystem& files, const std::string& store);

}  // namespace syncline::store
