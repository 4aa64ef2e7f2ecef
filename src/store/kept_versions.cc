#include "store/kept_versions.h"

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/index.h"
#include "store/latest.h"
#include "store/manifest.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using objects::ObjectInfo;
using Versions = std::set<std::uint64_t>;

// Failures that say nothing about the thing that was asked for.
bool MayPass(Code code) {
  return code == Code::kCancelled || code == Code::kTimeout || code == Code::kUnavailable;
}

}  // namespace

std::string KeyOf(std::uint64_t version, std::string_view name) {
  return fmt::format("{}/{}", VersionName(version), name);
}

Result<Versions> Survey::List() {
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> listed, ListVersionFolders(store_, cancel_));
  return Versions(listed.begin(), listed.end());
}

Result<Node> Survey::Read(std::uint64_t version) {
  Result<Node> node = ReadIndex(version);
  if (node || MayPass(node.error().code)) return node;
  base::Log(base::LogLevel::kError, fmt::format("version {} of {} cannot be read and is kept: {}",
                                                version, store_.url(), node.error().message));
  return Node{};
}

Result<Versions> Survey::Uncommitted(const Versions& versions) {
  Versions without;
  for (auto it = versions.rbegin(); it != versions.rend(); ++it) {
    const auto manifest = store_.Stat(KeyOf(*it, kManifestName), cancel_);
    if (manifest) return without;
    if (manifest.error().code != Code::kNotFound) return std::unexpected(manifest.error());
    without.insert(*it);
  }
  return Versions();  // another program's, which writes none
}

Result<bool> Survey::HoldsFullCopy(std::uint64_t version) {
  SYNCLINE_ASSIGN(const auto there,
                  store_.List(KeyOf(version, fmt::format("{}/", kFullCopyFolder)), false, cancel_));
  if (there.empty()) return false;
  const Result<std::string> text =
      store_.ReadText(KeyOf(version, kManifestName), kMaxManifestBytes, cancel_);
  if (!text && MayPass(text.error().code)) return std::unexpected(text.error());
  if (!text) return false;
  const Result<Manifest> manifest = ParseManifest(*text);
  if (!manifest || manifest->version != version) return false;
  std::map<std::string, std::uint64_t> sizes;
  for (const ObjectInfo& object : there) sizes.emplace(object.key, object.bytes);
  std::size_t files = 0;
  for (const ManifestFile& file : manifest->files) {
    if (!IsOfFullCopy(file.name)) continue;
    const auto found = sizes.find(KeyOf(version, file.name));
    if (found == sizes.end() || found->second != file.bytes) return false;
    ++files;
  }
  return files > 0;
}

Result<std::optional<std::uint64_t>> Survey::Pointer() {
  const Result<std::string> text =
      store_.ReadText(std::string(kLatestName), kMaxLatestBytes, cancel_);
  if (!text && MayPass(text.error().code)) return std::unexpected(text.error());
  if (!text) return std::nullopt;
  const Result<Json> json = base::ParseJson(*text);
  return json ? VersionNumber(json->Find("version")) : std::nullopt;
}

// OK if a version without index is a full one.
Status Survey::FindFull(std::uint64_t version) {
  auto single = store_.Stat(KeyOf(version, checkpoint::kSingleFileName), cancel_);
  if (single) return {};
  if (single.error().code != Code::kNotFound) return std::unexpected(single.error());
  const Result<std::string> text =
      store_.ReadText(KeyOf(version, kManifestName), kMaxManifestBytes, cancel_);
  if (!text && text.error().code != Code::kNotFound) return std::unexpected(text.error());
  if (text) {
    SYNCLINE_ASSIGN(const Manifest manifest, ParseManifest(*text));
    if (IsTree(manifest) && manifest.version == version) return {};
    return std::unexpected(std::move(single).error());
  }
  if (store_.Stat(KeyOf(version, checkpoint::kPipelineIndexName), cancel_)) return {};
  return std::unexpected(std::move(single).error());
}

Result<Node> Survey::ReadIndex(std::uint64_t version) {
  const Result<std::string> text =
      store_.ReadText(KeyOf(version, checkpoint::kIndexName), checkpoint::kMaxIndexBytes, cancel_);
  if (!text && text.error().code == Code::kNotFound) {
    SYNCLINE_TRY(FindFull(version));
    return Node{.kind = Node::Kind::kFull};
  }
  if (!text) return std::unexpected(text.error());
  SYNCLINE_ASSIGN(const checkpoint::Index index, checkpoint::ParseIndex(*text));
  SYNCLINE_ASSIGN(const std::optional<DeltaInfo> delta, ParseDeltaInfo(index.metadata));
  if (!delta) return Node{.kind = Node::Kind::kFull};
  if (delta->version != version || delta->base_version >= version) {
    return Fail(Code::kOutOfOrder, fmt::format("its index says version {} on base {}",
                                               delta->version, delta->base_version));
  }
  return Node{.kind = Node::Kind::kDelta, .base = delta->base_version};
}

Status Keeper::Keep(std::uint64_t version) {
  while (kept_.insert(version).second) {
    const Node& node = nodes_.at(version);
    if (node.kind == Node::Kind::kFull) return {};
    if (node.kind == Node::Kind::kUnreadable) {
      KeepOlderThan(version);
      return {};
    }
    SYNCLINE_ASSIGN(const bool copy, survey_.HoldsFullCopy(version));
    if (copy) return {};
    if (!nodes_.contains(node.base)) {
      if (node.base == 0) return {};  // a checkpoint that readers have already
      base::Log(base::LogLevel::kError,
                fmt::format("version {} builds on version {}, which is missing: all older "
                            "versions are kept",
                            version, node.base));
      KeepOlderThan(version);
      return {};
    }
    version = node.base;
  }
  return {};
}

void Keeper::KeepOlderThan(std::uint64_t version) {
  for (auto it = nodes_.begin(); it != nodes_.end() && it->first < version; ++it) {
    kept_.insert(it->first);
  }
}

Result<Versions> ChooseKept(Survey& survey, const std::map<std::uint64_t, Node>& nodes,
                            const GcOptions& options) {
  Keeper keeper(survey, nodes);
  std::uint64_t newest = 0;
  std::uint64_t left = options.keep;
  for (auto it = nodes.rbegin(); it != nodes.rend() && left > 0; ++it) {
    if (it->second.kind == Node::Kind::kUnreadable) continue;
    if (left-- == options.keep) newest = it->first;
    SYNCLINE_TRY(keeper.Keep(it->first));
  }
  SYNCLINE_ASSIGN(const auto pointer, survey.Pointer());
  if (pointer && nodes.contains(*pointer)) SYNCLINE_TRY(keeper.Keep(*pointer));
  for (const auto& [version, node] : nodes) {
    if (node.kind == Node::Kind::kUnreadable) {
      // A newer one than all others may be a version that is being published: it builds on those
      // that are kept anyway.
      if (left == options.keep || version < newest) SYNCLINE_TRY(keeper.Keep(version));
      continue;
    }
    if (options.keep_full_every == 0 || version % options.keep_full_every != 0) continue;
    bool full = node.kind == Node::Kind::kFull;
    if (!full) {
      SYNCLINE_ASSIGN(full, survey.HoldsFullCopy(version));
    }
    if (full) SYNCLINE_TRY(keeper.Keep(version));
  }
  Versions kept = keeper.kept();
  for (const auto& [version, node] : nodes) {
    if (node.kind == Node::Kind::kUnreadable) kept.insert(version);
  }
  return kept;
}

}  // namespace syncline::store
