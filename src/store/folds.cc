#include "store/folds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "store/fields.h"
#include "store/file_hash.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::uint64_t kFormat = 1;
constexpr std::string_view kPrefix = "fold_v";
constexpr std::string_view kBetween = "_v";
constexpr int kMaxRounds = 8;  // as many others may change the folds meanwhile

// A number as it stands in names: with at least six digits.
std::optional<std::uint64_t> ParseDigits(std::string_view digits) {
  return ParseVersionName(fmt::format("weight_v{}", digits));
}

// Nothing for a fold that is not whole, or cannot be read.
Result<std::optional<FoldEntry>> ReadEntry(objects::ObjectStore& store, const FoldRange& range,
                                           const base::CancelToken* cancel) {
  const std::string key = base::JoinPath(FoldName(range), kManifestName);
  const Result<std::string> text = store.ReadText(key, kMaxManifestBytes, cancel);
  if (!text && text.error().code == Code::kNotFound) return std::nullopt;
  if (!text) return std::unexpected(text.error());
  const Result<Manifest> manifest = ParseManifest(*text);
  if (!manifest) return std::nullopt;
  FoldEntry entry{.range = range, .identity = Identity(*text)};
  for (const ManifestFile& file : manifest->files) entry.bytes += file.bytes;
  return entry;
}

Result<std::string> WantedText(objects::ObjectStore& store, const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const std::vector<FoldRange> ranges, ListFoldFolders(store, cancel));
  std::vector<FoldEntry> folds;
  for (const FoldRange& range : ranges) {
    SYNCLINE_ASSIGN(std::optional<FoldEntry> entry, ReadEntry(store, range, cancel));
    if (entry) folds.push_back(*std::move(entry));
  }
  return folds.empty() ? std::string() : FoldsText(folds);
}

}  // namespace

std::string FoldName(const FoldRange& range) {
  return fmt::format("{}{:06}{}{:06}", kPrefix, range.from, kBetween, range.to);
}

std::optional<FoldRange> ParseFoldName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view numbers = name.substr(kPrefix.size());
  const std::size_t between = numbers.find(kBetween);
  if (between == std::string_view::npos) return std::nullopt;
  const auto from = ParseDigits(numbers.substr(0, between));
  const auto to = ParseDigits(numbers.substr(between + kBetween.size()));
  if (!from || !to || *from >= *to) return std::nullopt;
  return FoldRange{*from, *to};
}

std::string FoldsText(const std::vector<FoldEntry>& folds) {
  Json::Array list;
  for (const FoldEntry& fold : folds) {
    list.emplace_back(Json::Object{{"from", fold.range.from},
                                   {"to", fold.range.to},
                                   {"identity", fold.identity},
                                   {"bytes", fold.bytes}});
  }
  return ToText(Json(Json::Object{{"format", kFormat}, {"folds", std::move(list)}})) + "\n";
}

Result<std::vector<FoldEntry>> ParseFolds(std::string_view text) {
  if (text.size() > kMaxFoldsBytes) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{} bytes, the limit is {}", text.size(), kMaxFoldsBytes));
  }
  SYNCLINE_ASSIGN(const Json json, base::ParseJson(text));
  SYNCLINE_ASSIGN(const std::uint64_t format, NumberIn(json, "format"));
  if (format != kFormat) {
    return Fail(Code::kIncompatible, fmt::format("format {}, expected {}", format, kFormat));
  }
  const Json* list = json.Find("folds");
  if (list == nullptr || list->array() == nullptr) {
    return Fail(Code::kCorrupt, "\"folds\" is missing or not a list");
  }
  std::vector<FoldEntry> folds;
  for (const Json& item : *list->array()) {
    FoldEntry fold;
    SYNCLINE_ASSIGN(fold.range.from, NumberIn(item, "from"));
    SYNCLINE_ASSIGN(fold.range.to, NumberIn(item, "to"));
    SYNCLINE_ASSIGN(fold.bytes, NumberIn(item, "bytes"));
    const Json* identity = item.Find("identity");
    if (identity == nullptr || identity->string() == nullptr ||
        !IsLowerHex(*identity->string(), 64)) {
      return Fail(Code::kCorrupt, "\"identity\" is not 64 lower-case hex digits");
    }
    fold.identity = *identity->string();
    if (fold.range.from >= fold.range.to) {
      return Fail(Code::kCorrupt, fmt::format("a fold cannot lead from version {} to {}",
                                              fold.range.from, fold.range.to));
    }
    folds.push_back(std::move(fold));
  }
  return folds;
}

Result<std::vector<FoldRange>> ListFoldFolders(objects::ObjectStore& store,
                                               const base::CancelToken* cancel) {
  SYNCLINE_ASSIGN(const std::vector<objects::ObjectInfo> folders,
                  store.List("", /*folders_only=*/true, cancel));
  std::vector<FoldRange> ranges;
  for (const objects::ObjectInfo& folder : folders) {
    std::string_view name = folder.key;
    if (name.ends_with('/')) name.remove_suffix(1);
    if (const auto range = ParseFoldName(name)) ranges.push_back(*range);
  }
  std::ranges::sort(ranges);
  return ranges;
}

Status UpdateFolds(objects::ObjectStore& store, const base::CancelToken* cancel) {
  const std::string key(kFoldsName);
  for (int round = 0; round < kMaxRounds; ++round) {
    SYNCLINE_ASSIGN(const std::string wanted, WantedText(store, cancel));
    const Result<std::string> there = store.ReadText(key, kMaxFoldsBytes, cancel);
    const Code code = there ? Code::kInternal : there.error().code;
    if (!there && code != Code::kNotFound && code != Code::kLimitExceeded) {
      return std::unexpected(there.error());
    }
    if (code == Code::kNotFound ? wanted.empty() : there && *there == wanted) return {};
    if (wanted.empty()) {
      SYNCLINE_TRY(store.Remove(key, cancel));
    } else {
      SYNCLINE_TRY(store.PutText(key, wanted, false, cancel));
    }
  }
  return {};
}

}  // namespace syncline::store
