// Folds: deltas that lead over several versions at once, beside the versions of a store
// (docs/format.md). A fold is no version: it leads to one that stands there, and may go at any
// time.
//
// syncline.folds.json names the folds of a store for readers that cannot list it. It is replaced
// after a fold stands or was removed, so it may lag behind, and name folds that are gone.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "objects/object_store.h"

namespace syncline::store {

inline constexpr std::string_view kFoldsName = "syncline.folds.json";
inline constexpr std::uint64_t kMaxFoldsBytes = 16'000'000;

struct FoldRange {
  std::uint64_t from = 0;  // less than `to`
  std::uint64_t to = 0;
  auto operator<=>(const FoldRange&) const = default;
};

// "fold_v000003_v000012"
std::string FoldName(const FoldRange& range);
// Only of a name that FoldName would give.
std::optional<FoldRange> ParseFoldName(std::string_view name);

// What is known of a fold before it is looked at.
struct FoldEntry {
  FoldRange range;
  std::string identity;     // SHA-256 of its manifest; empty: not known
  std::uint64_t bytes = 0;  // of its files but manifest and signature; 0: not known
  bool operator==(const FoldEntry&) const = default;
};

std::string FoldsText(const std::vector<FoldEntry>& folds);
// kCorrupt for fields that are missing or wrong, kIncompatible for a format that we do not know.
base::Result<std::vector<FoldEntry>> ParseFolds(std::string_view text);

// The folders of folds in a store that can be listed, ascending; one that is on its way up, too.
base::Result<std::vector<FoldRange>> ListFoldFolders(objects::ObjectStore& store,
                                                     const base::CancelToken* cancel);

// Makes syncline.folds.json say which folds the store holds; removes it where there are none. Looks
// again after it has written, so of several that do this at once the last one is right.
base::Status UpdateFolds(objects::ObjectStore& store, const base::CancelToken* cancel);

}  // namespace syncline::store
