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
//    version that is there can be read by the ones that are there. In a directory it is renamed
//    into the trash, which is synced, and deleted there, so that no crash can bring back a part of
//    it. Elsewhere it is noted as being removed, then loses its manifest, its index, and the rest.
//    The folds that lead to it go before it, in the same way. Those that lead to no version, as
//    their version went while they were made, go at the end; then syncline.folds.json follows.
#include "store/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/index.h"
#include "store/directory_sink.h"
#include "store/folds.h"
#include "store/kept_versions.h"
#include "store/lease.h"
#include "store/manifest.h"
#include "store/signature.h"
#include "store/version.h"

namespace syncline::store {
namespace {

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
  if (!json || VersionNumber(json->Find("format")) != kNotesFormat) return std::nullopt;
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
    SYNCLINE_TRY(RemoveLostFolds());
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
      SYNCLINE_TRY(RemoveFolds(version));
      SYNCLINE_TRY(Remove(VersionName(version)));
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
      SYNCLINE_TRY(RemoveFolds(version));
      SYNCLINE_TRY(Remove(VersionName(version)));
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

  // Those that lead to a version.
  Status RemoveFolds(std::uint64_t version) {
    SYNCLINE_TRY(ListFolds());
    for (const FoldRange& fold : *folds_) {
      if (fold.to == version) SYNCLINE_TRY(RemoveFold(fold));
    }
    std::erase_if(*folds_, [&](const FoldRange& fold) { return fold.to == version; });
    return {};
  }

  Status RemoveFold(const FoldRange& fold) {
    SYNCLINE_TRY(Remove(FoldName(fold)));
    report_.folds_removed.push_back(FoldName(fold));
    return {};
  }

  Status ListFolds() {
    if (folds_) return {};
    SYNCLINE_ASSIGN(folds_, ListFoldFolders(store_, options_.cancel));
    return {};
  }

  // Folds that lead to no version. A fold in the making holds its version by a lease.
  Status RemoveLostFolds() {
    SYNCLINE_TRY(ListFolds());
    if (!folds_->empty()) {
      // Versions that came since the run began count, too.
      SYNCLINE_ASSIGN(const std::vector<std::uint64_t> there,
                      ListVersionFolders(store_, options_.cancel));
      for (const FoldRange& fold : *folds_) {
        if (std::ranges::binary_search(there, fold.to)) continue;
        SYNCLINE_ASSIGN(const bool held, IsLeased(fold.to));
        if (!held) SYNCLINE_TRY(RemoveFold(fold));
      }
    }
    std::ranges::sort(report_.folds_removed);
    return options_.dry_run ? Status() : UpdateFolds(store_, options_.cancel);
  }

  Status Remove(const std::string& name) {
    SYNCLINE_ASSIGN(const auto objects, store_.List(name + "/", false, options_.cancel));
    for (const ObjectInfo& object : objects) report_.bytes_removed += object.bytes;
    if (options_.dry_run) return {};
    return local_ ? RemoveDirectory(name) : RemoveObjects(name, objects);
  }

  Status RemoveDirectory(const std::string& name) {
    const std::string aside = base::JoinPath(Trash(), name);
    SYNCLINE_TRY(files_.MakeDirectories(Trash()));
    SYNCLINE_TRY(files_.Rename(base::JoinPath(store_.local_path(), name), aside));
    SYNCLINE_TRY(files_.SyncDirectory(Trash()));
    SYNCLINE_TRY(files_.SyncDirectory(store_.local_path()));
    return files_.RemoveAll(aside);
  }

  Status RemoveObjects(const std::string& folder, const std::vector<ObjectInfo>& objects) {
    for (const std::string_view name :
         {kManifestName, kSignatureName, checkpoint::kIndexName, checkpoint::kSingleFileName,
          checkpoint::kPipelineIndexName}) {
      const std::string key = base::JoinPath(folder, name);
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
  std::optional<std::vector<FoldRange>> folds_;  // that are there, once they were listed
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
