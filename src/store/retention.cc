// One run of Collect:
// 1. On a directory, take .syncline/gc.lock, and empty .syncline/trash: what is there has left the
//    store already. Elsewhere, finish the versions that the notes (.syncline/gc.json) say are being
//    removed: they are no versions any more.
// 2. List the versions and read of each what it builds on. From the newest ones, the pointer and
//    the full ones by keep_full_every, follow the bases: all of that is kept. Where it is not known
//    what a version builds on, all older ones are kept.
// 3. The notes get the useless versions with the time at which each was first found so; those that
//    are needed again leave them. The notes are written before anything is removed.
// 4. A useless version whose time of grace is over, and that no lease holds at this moment, is
//    removed, unless one that stays builds on it. The newest goes first. So at every moment each
//    version that is there can be read by the ones that are there. In a directory it is renamed into the trash, which is synced, and deleted there, so
//    that no crash can bring back a part of it. Elsewhere it is noted as being removed, then loses
//    its manifest, its index, and the rest.
#include "store/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/index.h"
#include "store/directory_sink.h"
#include "store/latest.h"
#include "store/lease.h"
#include "store/manifest.h"
#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::FileSystem;
using base::Json;
using base::Result;
using base::Status;
using objects::ObjectInfo;
using objects::ObjectStore;
using Versions = std::set<std::uint64_t>;

constexpr std::string_view kNotesKey = ".syncline/gc.json";
constexpr std::uint64_t kNotesFormat = 1;
constexpr std::uint64_t kMaxNotesBytes = 64'000'000;

std::string KeyOf(std::uint64_t version, std::string_view name) {
  return fmt::format("{}/{}", VersionName(version), name);
}

std::optional<std::uint64_t> NumberOf(const Json* json) {
  if (json == nullptr) return std::nullopt;
  if (json->unsigned_integer() != nullptr) return *json->unsigned_integer();
  if (json->string() == nullptr) return std::nullopt;
  const std::string& text = *json->string();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.empty() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Failures that say nothing about the thing that was asked for.
bool MayPass(Code code) {
  return code == Code::kCancelled || code == Code::kTimeout || code == Code::kUnavailable;
}

// ---- What a version builds on.

struct Node {
  enum class Kind { kFull, kDelta, kUnreadable };
  Kind kind = Kind::kUnreadable;
  std::uint64_t base = 0;  // of a delta
};

// Reads versions through the store, as little of each as will do.
class Survey {
 public:
  Survey(ObjectStore& store, const CancelToken* cancel) : store_(store), cancel_(cancel) {}

  Result<Versions> List() {
    SYNCLINE_ASSIGN(const auto folders, store_.List("", true, cancel_));
    Versions versions;
    for (const ObjectInfo& folder : folders) {
      std::string_view name = folder.key;
      if (name.ends_with('/')) name.remove_suffix(1);
      if (const auto version = ParseVersionName(name)) versions.insert(*version);
    }
    return versions;
  }

  // An error only if it may pass.
  Result<Node> Read(std::uint64_t version) {
    Result<Node> node = ReadIndex(version);
    if (node || MayPass(node.error().code)) return node;
    base::Log(base::LogLevel::kError, fmt::format("version {} of {} cannot be read and is kept: {}",
                                                  version, store_.url(), node.error().message));
    return Node{};
  }

  // Of a store that is no directory: versions that are being published, or whose publisher died.
  // Their manifest, which is the commit, is missing, while an older version has one.
  Result<Versions> Uncommitted(const Versions& versions) {
    Versions without;
    for (auto it = versions.rbegin(); it != versions.rend(); ++it) {
      const auto manifest = store_.Stat(KeyOf(*it, kManifestName), cancel_);
      if (manifest) return without;
      if (manifest.error().code != Code::kNotFound) return std::unexpected(manifest.error());
      without.insert(*it);
    }
    return Versions();  // another program's, which writes none
  }

  // Does the version hold the full copy that its manifest says, as far as names and sizes go?
  Result<bool> HoldsFullCopy(std::uint64_t version) {
    SYNCLINE_ASSIGN(
        const auto there,
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
      if (!file.name.starts_with(fmt::format("{}/", kFullCopyFolder))) continue;
      const auto found = sizes.find(KeyOf(version, file.name));
      if (found == sizes.end() || found->second != file.bytes) return false;
      ++files;
    }
    return files > 0;
  }

  // What syncline.latest.json names, whatever its format; nothing without a readable one.
  Result<std::optional<std::uint64_t>> Pointer() {
    const Result<std::string> text =
        store_.ReadText(std::string(kLatestName), kMaxLatestBytes, cancel_);
    if (!text && MayPass(text.error().code)) return std::unexpected(text.error());
    if (!text) return std::nullopt;
    const Result<Json> json = base::ParseJson(*text);
    return json ? NumberOf(json->Find("version")) : std::nullopt;
  }

 private:
  Result<Node> ReadIndex(std::uint64_t version) {
    const Result<std::string> text = store_.ReadText(KeyOf(version, checkpoint::kIndexName),
                                                     checkpoint::kMaxIndexBytes, cancel_);
    if (!text && text.error().code == Code::kNotFound) {
      SYNCLINE_TRY(store_.Stat(KeyOf(version, checkpoint::kSingleFileName), cancel_));
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

  ObjectStore& store_;
  const CancelToken* cancel_;
};

// ---- What is kept.

// Follows bases from the versions that are asked for.
class Keeper {
 public:
  Keeper(Survey& survey, const std::map<std::uint64_t, Node>& nodes)
      : survey_(survey), nodes_(nodes) {}

  Status Keep(std::uint64_t version) {
    while (kept_.insert(version).second) {
      const Node& node = nodes_.at(version);
      if (node.kind == Node::Kind::kFull) return {};
      if (node.kind == Node::Kind::kUnreadable) return KeepOlderThan(version);
      SYNCLINE_ASSIGN(const bool copy, survey_.HoldsFullCopy(version));
      if (copy) return {};
      if (!nodes_.contains(node.base)) {
        if (node.base == 0) return {};  // a checkpoint that readers have already
        base::Log(base::LogLevel::kError,
                  fmt::format("version {} builds on version {}, which is missing: all older "
                              "versions are kept",
                              version, node.base));
        return KeepOlderThan(version);
      }
      version = node.base;
    }
    return {};
  }

  const Versions& kept() const { return kept_; }

 private:
  Status KeepOlderThan(std::uint64_t version) {
    for (auto it = nodes_.begin(); it != nodes_.end() && it->first < version; ++it) {
      kept_.insert(it->first);
    }
    return {};
  }

  Survey& survey_;
  const std::map<std::uint64_t, Node>& nodes_;
  Versions kept_;
};

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

// ---- The notes.

struct Notes {
  std::map<std::uint64_t, std::uint64_t> useless;  // version, and since when (ns since the epoch)
  Versions removing;                               // no versions any more

  bool operator==(const Notes&) const = default;
};

std::string NotesText(const Notes& notes) {
  Json::Object useless;
  for (const auto& [version, since] : notes.useless) {
    useless.emplace_back(fmt::format("{:06}", version), since);
  }
  return ToText(Json(Json::Object{
                    {"format", kNotesFormat},
                    {"useless", std::move(useless)},
                    {"removing", Json::Array(notes.removing.begin(), notes.removing.end())}}),
                true) +
         "\n";
}

std::optional<Notes> ParseNotes(std::string_view text) {
  const Result<Json> json = base::ParseJson(text);
  if (!json || NumberOf(json->Find("format")) != kNotesFormat) return std::nullopt;
  const Json* useless = json->Find("useless");
  const Json* removing = json->Find("removing");
  if (useless == nullptr || useless->object() == nullptr || removing == nullptr ||
      removing->array() == nullptr) {
    return std::nullopt;
  }
  Notes notes;
  for (const auto& [key, value] : *useless->object()) {
    const auto version = ParseVersionName(fmt::format("weight_v{}", key));
    if (!version || value.unsigned_integer() == nullptr) return std::nullopt;
    notes.useless.emplace(*version, *value.unsigned_integer());
  }
  for (const Json& item : *removing->array()) {
    if (item.unsigned_integer() == nullptr) return std::nullopt;
    notes.removing.insert(*item.unsigned_integer());
  }
  return notes;
}

// ---- One run.

class Collector {
 public:
  Collector(ObjectStore& store, const GcOptions& options)
      : store_(store),
        options_(options),
        files_(options.files != nullptr ? *options.files : FileSystem::Posix()),
        local_(!store.local_path().empty()) {}

  Result<GcReport> Run() {
    SYNCLINE_TRY(Begin());
    SYNCLINE_TRY(ReadNotes());
    SYNCLINE_TRY(RemoveNoted());
    SYNCLINE_TRY(Judge());
    SYNCLINE_TRY(WriteNotes());
    SYNCLINE_TRY(RemoveDue());
    return std::move(report_);
  }

 private:
  std::string Trash() const { return base::JoinPath(OwnDirectory(store_.local_path()), "trash"); }

  Status Begin() {
    if (!local_ || options_.dry_run) return {};
    const std::string own = OwnDirectory(store_.local_path());
    SYNCLINE_TRY(files_.Stat(store_.local_path()));
    SYNCLINE_TRY(files_.MakeDirectories(own));
    auto lock = files_.Lock(base::JoinPath(own, "gc.lock"), base::LockMode::kExclusive, false);
    if (!lock) return Annotate(std::move(lock).error(), "another gc is at work");
    lock_ = *std::move(lock);
    return files_.RemoveAll(Trash());
  }

  Status ReadNotes() {
    const Result<std::string> text =
        store_.ReadText(std::string(kNotesKey), kMaxNotesBytes, options_.cancel);
    if (!text) {
      if (text.error().code == Code::kNotFound) return {};
      return std::unexpected(text.error());
    }
    if (auto notes = ParseNotes(*text)) {
      notes_ = *std::move(notes);
    } else {
      base::Log(base::LogLevel::kWarning,
                fmt::format("{}/{} is damaged: every time of grace begins anew", store_.url(),
                            kNotesKey));
    }
    written_ = notes_;
    return {};
  }

  Status WriteNotes() {
    if (options_.dry_run || notes_ == written_) return {};
    SYNCLINE_TRY(store_.PutText(std::string(kNotesKey), NotesText(notes_), false, options_.cancel));
    written_ = notes_;
    return {};
  }

  // What the run before began to remove from a store that is no directory.
  Status RemoveNoted() {
    if (local_) notes_.removing.clear();
    noted_ = notes_.removing;
    for (const std::uint64_t version : noted_) {
      SYNCLINE_TRY(Remove(version));
      report_.removed.push_back(version);
    }
    notes_.removing.clear();
    return {};
  }

  // Sorts all versions into kept, waiting, leased and due.
  Status Judge() {
    Survey survey(store_, options_.cancel);
    SYNCLINE_ASSIGN(const Versions versions, survey.List());
    Versions uncommitted;
    if (!local_) {
      SYNCLINE_ASSIGN(uncommitted, survey.Uncommitted(versions));
    }
    std::map<std::uint64_t, Node> nodes;
    for (const std::uint64_t version : versions) {
      if (noted_.contains(version)) continue;  // on its way out, in a dry run
      Node& node = nodes[version];
      if (uncommitted.contains(version)) continue;
      SYNCLINE_ASSIGN(node, survey.Read(version));
    }
    SYNCLINE_ASSIGN(const Versions kept, ChooseKept(survey, nodes, options_));
    report_.kept.assign(kept.begin(), kept.end());
    const auto now = static_cast<std::uint64_t>(NowNs());
    std::map<std::uint64_t, std::uint64_t> useless;
    Keeper waiting(survey, nodes);
    Keeper leased(survey, nodes);
    for (const auto& [version, node] : nodes) {
      if (kept.contains(version)) continue;
      const auto noted = notes_.useless.find(version);
      // A time to come is one of a clock that was wrong.
      const bool known = noted != notes_.useless.end() && noted->second <= now;
      const std::uint64_t since = known ? noted->second : now;
      useless.emplace(version, since);
      SYNCLINE_ASSIGN(const bool held, IsLeased(version));
      if (held) {
        SYNCLINE_TRY(leased.Keep(version));
      } else if (static_cast<double>(now - since) < options_.grace_seconds * 1e9) {
        SYNCLINE_TRY(waiting.Keep(version));
      }
    }
    for (const auto& [version, since] : useless) {
      if (leased.kept().contains(version)) {
        report_.leased.push_back(version);
      } else if (waiting.kept().contains(version)) {
        report_.waiting.push_back(version);
      } else {
        due_.insert(version);
      }
    }
    notes_.useless = std::move(useless);
    if (!local_) notes_.removing = due_;
    return {};
  }

  // Newest first. If one is leased by now, so may be what it builds on.
  Status RemoveDue() {
    while (!due_.empty()) {
      if (options_.cancel != nullptr) SYNCLINE_TRY(options_.cancel->Check());
      const std::uint64_t version = *due_.rbegin();
      SYNCLINE_ASSIGN(const bool held, IsLeased(version));
      if (held) break;
      SYNCLINE_TRY(Remove(version));
      report_.removed.push_back(version);
      notes_.useless.erase(version);
      due_.erase(version);
    }
    report_.leased.insert(report_.leased.end(), due_.begin(), due_.end());
    notes_.removing.clear();
    std::ranges::sort(report_.removed);
    std::ranges::sort(report_.leased);
    return WriteNotes();
  }

  Result<bool> IsLeased(std::uint64_t version) {
    if (!local_) return false;
    SYNCLINE_ASSIGN(const auto held,
                    ReadLeases(files_, store_.local_path(), NowNs(), !options_.dry_run));
    return std::ranges::any_of(
        held, [&](const HeldRange& range) { return range.from <= version && version <= range.to; });
  }

  Status Remove(std::uint64_t version) {
    SYNCLINE_ASSIGN(const auto objects,
                    store_.List(VersionName(version) + "/", false, options_.cancel));
    for (const ObjectInfo& object : objects) report_.bytes_removed += object.bytes;
    if (options_.dry_run) return {};
    return local_ ? RemoveDirectory(version) : RemoveObjects(version, objects);
  }

  Status RemoveDirectory(std::uint64_t version) {
    const std::string name = VersionName(version);
    const std::string aside = base::JoinPath(Trash(), name);
    SYNCLINE_TRY(files_.MakeDirectories(Trash()));
    SYNCLINE_TRY(files_.Rename(base::JoinPath(store_.local_path(), name), aside));
    SYNCLINE_TRY(files_.SyncDirectory(Trash()));
    SYNCLINE_TRY(files_.SyncDirectory(store_.local_path()));
    return files_.RemoveAll(aside);
  }

  Status RemoveObjects(std::uint64_t version, const std::vector<ObjectInfo>& objects) {
    for (const std::string_view name :
         {kManifestName, kSignatureName, checkpoint::kIndexName, checkpoint::kSingleFileName}) {
      const std::string key = KeyOf(version, name);
      if (std::ranges::find(objects, key, &ObjectInfo::key) == objects.end()) continue;
      SYNCLINE_TRY(store_.Remove(key, options_.cancel));
    }
    for (const ObjectInfo& object : objects) {
      SYNCLINE_TRY(store_.Remove(object.key, options_.cancel));
    }
    return {};
  }

  ObjectStore& store_;
  const GcOptions& options_;
  FileSystem& files_;
  const bool local_;
  std::unique_ptr<base::FileLock> lock_;
  Notes notes_;
  Notes written_;  // as the store has them
  Versions noted_;
  Versions due_;
  GcReport report_;
};

}  // namespace

Result<GcReport> Collect(ObjectStore& store, const GcOptions& options) {
  if (options.keep == 0) {
    return Fail(Code::kInvalidArgument, "at least one version must be kept");
  }
  if (!store.can_list() || (!store.can_write() && !options.dry_run)) {
    return Fail(Code::kIncompatible,
                fmt::format("{} cannot be listed and written, which gc needs", store.url()));
  }
  return Collector(store, options).Run();
}

}  // namespace syncline::store
