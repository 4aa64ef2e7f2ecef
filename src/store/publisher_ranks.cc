// One version by several ranks (see rank_group.cc for how they find each other):
// 1. Survey, when the ranks' tensors are not known: each names what it has. A tensor that several
//    have is written by the lowest of them; the others only hash it.
// 2. Rank 0 empties staging and opens the attempt. Each rank writes its files there, under names of
//    its own, and contributes their hashes and those of its tensors.
// 3. Rank 0 checks that the parts fit each other, writes the index and the manifest, removes what no
//    part names, and commits.
// 4. A rank takes the version for published when its manifest holds the rank's own hashes; only then
//    its baseline moves. So it does not matter what of rank 0 it saw, or whether rank 0 still lives.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "checkpoint/index.h"
#include "checkpoint/writer.h"
#include "store/delta_writer.h"
#include "store/file_hash.h"
#include "store/full_writer.h"
#include "store/publisher_work.h"
#include "store/rank_weights.h"
#include "store/tensor_set.h"

namespace syncline::store {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using tensor::TensorView;

constexpr int kMaxAttempts = 4;  // of a call, when ranks come back with other tensors

std::string NamesHash(std::span<const TensorView> tensors) {
  std::string text;
  for (const TensorView& view : tensors) {
    text += fmt::format("{}\n{} {}\n", view.name, Name(view.dtype), tensor::ShapeText(view.shape));
  }
  return Sha256Hex(base::AsBytes(text));
}

std::set<std::string> FilesOf(const checkpoint::WeightMap& map, std::string_view folder) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : map) files.insert(base::JoinPath(folder, file));
  return files;
}

bool SameMeaning(const ManifestTensor& a, const ManifestTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.hash == b.hash;
}

std::string Describe(const ManifestTensor& tensor) {
  return fmt::format("{} {} {}", Name(tensor.dtype), tensor::ShapeText(tensor.shape),
                     tensor.hash.empty() ? "unchanged" : tensor.hash);
}

// tensors[k] is number at[k] of the call.
void NoteDigests(const std::vector<ManifestTensor>& tensors, std::span<const std::size_t> at,
                 std::vector<std::optional<tensor::Digest>>& digests) {
  for (std::size_t k = 0; k < tensors.size(); ++k) digests[at[k]] = tensors[k].digest;
}

}  // namespace

// What one rank hands over, split by who writes it.
struct Publisher::Split {
  std::vector<std::size_t> owned;  // indices into the tensors of the call
  std::vector<std::size_t> skipped;
};

Publisher::Split Publisher::SplitTensors(std::span<const TensorView> tensors,
                                         const Announcement& announcement) const {
  Split split;
  const auto found = announcement.skip.find(options_.ranks.rank);
  std::set<std::string_view> skip;
  if (found != announcement.skip.end()) skip.insert(found->second.begin(), found->second.end());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    (skip.contains(tensors[i].name) ? split.skipped : split.owned).push_back(i);
  }
  return split;
}

Result<RankPart> Publisher::MakePart(Work& work, const Announcement& announcement) {
  RankPart part;
  part.names_hash = NamesHash(work.tensors);
  if (announcement.state == Announcement::State::kSurvey) {
    for (const TensorView& view : work.tensors) {
      part.tensors.push_back({view.name, view.dtype, view.shape, {}});
    }
    return part;
  }
  const Split split = SplitTensors(work.tensors, announcement);
  std::vector<TensorView> owned;
  owned.reserve(split.owned.size());
  for (const std::size_t i : split.owned) owned.push_back(work.tensors[i]);
  SYNCLINE_ASSIGN(const TensorTotals totals, Total(owned));
  part.tensors_total = owned.size();
  part.elements = totals.elements;
  part.full_bytes = totals.bytes;
  const std::string prefix = RankFilePrefix(options_.ranks.rank);
  SYNCLINE_TRY(files_->MakeDirectories(work.directory));
  SYNCLINE_TRY(RemoveOwnFiles(*files_, work.directory, prefix));
  const checkpoint::WriteOptions how = {.durable = options_.durable,
                                        .components = announcement.components};
  if (announcement.base_version) {
    SYNCLINE_TRY(WriteDeltaPart(work, announcement, split, part));
  } else {
    SYNCLINE_ASSIGN(part.weight_map, WriteOwnWeights(*files_, work.directory, owned, prefix, how,
                                                     *pool_, work.progress, work.cancel));
    part.elements_changed = part.elements;
    SYNCLINE_ASSIGN(part.tensors, HashTensors(owned, nullptr, *pool_, work.cancel));
    std::vector<TensorView> skipped;
    skipped.reserve(split.skipped.size());
    for (const std::size_t i : split.skipped) skipped.push_back(work.tensors[i]);
    SYNCLINE_ASSIGN(part.skipped, HashTensors(skipped, nullptr, *pool_, work.cancel));
    work.digests.assign(work.tensors.size(), std::nullopt);
    NoteDigests(part.tensors, split.owned, work.digests);
    NoteDigests(part.skipped, split.skipped, work.digests);
  }
  std::set<std::string> names = FilesOf(part.weight_map, "");
  if (announcement.full_copy) {
    const std::string copy = base::JoinPath(work.directory, kFullCopyFolder);
    SYNCLINE_ASSIGN(part.copy_map, WriteOwnWeights(*files_, copy, owned, prefix, how, *pool_,
                                                   work.progress, work.cancel));
    for (const std::size_t i : split.owned) {
      const TensorView& view = work.tensors[i];
      part.copy_tensors.push_back({view.name, view.dtype, view.shape, {}, work.digests[i]});
    }
    names.merge(FilesOf(part.copy_map, kFullCopyFolder));
  }
  if (options_.durable) SYNCLINE_TRY(files_->SyncDirectory(work.directory));
  work.written.assign(names.begin(), names.end());
  work.manifest.files.clear();
  SYNCLINE_TRY(HashFiles(work));
  part.files = std::move(work.manifest.files);
  work.manifest.files.clear();
  return part;
}

Status Publisher::WriteDeltaPart(Work& work, const Announcement& announcement, const Split& split,
                                 RankPart& part) {
  const std::span<const TensorView> held = baseline_->tensors();
  std::vector<TensorView> old_owned;
  std::vector<TensorView> new_owned;
  for (const std::size_t i : split.owned) {
    old_owned.push_back(held[i]);
    new_owned.push_back(work.tensors[i]);
  }
  const DeltaInfo info{.version = announcement.version,
                       .base_version = *announcement.base_version,
                       .encoding = options_.encoding.encoding};
  work.digests = digests_;
  work.digests.resize(work.tensors.size());
  std::vector<std::optional<tensor::Digest>> digests;
  for (const std::size_t i : split.owned) digests.push_back(work.digests[i]);
  std::vector<delta::ChangedLines> lines;
  SYNCLINE_ASSIGN(DeltaCounts counts,
                  WriteDelta(*files_, work.directory, old_owned, new_owned, info,
                             {.prefix = RankFilePrefix(options_.ranks.rank),
                              .durable = options_.durable,
                              .choice = options_.encoding,
                              .digests = &digests},
                             lines, *pool_, work.progress, work.cancel));
  for (std::size_t i = 0; i < digests.size(); ++i) work.digests[split.owned[i]] = digests[i];
  part.elements_changed = counts.elements_changed;
  part.tensors = std::move(counts.tensors);
  part.weight_map = std::move(counts.weight_map);
  work.lines.clear();
  work.lines.resize(work.tensors.size());
  for (std::size_t i = 0; i < lines.size(); ++i) work.lines[split.owned[i]] = std::move(lines[i]);
  std::vector<TensorView> changed;
  std::vector<std::size_t> changed_at;
  for (const std::size_t i : split.skipped) {
    const base::ByteSpan bytes = work.tensors[i].bytes;
    work.lines[i] = delta::ChangedLines(bytes.size());
    if (std::ranges::equal(bytes, held[i].bytes)) continue;
    changed.push_back(work.tensors[i]);
    changed_at.push_back(i);
    for (std::uint64_t at = 0; at < bytes.size(); at += delta::ChangedLines::kLineBytes) {
      work.lines[i].Mark(at);
    }
  }
  SYNCLINE_ASSIGN(part.skipped, HashTensors(changed, nullptr, *pool_, work.cancel));
  // Who writes a tensor may be another rank by the next version.
  NoteDigests(part.skipped, changed_at, work.digests);
  return {};
}

Status Publisher::EnsureBaseline(std::uint64_t version, std::span<const TensorView> tensors,
                                 const CancelToken* cancel) {
  if (held_ != version) {
    if (!options_.load_baseline) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("rank {} does not hold version {}", options_.ranks.rank, version));
    }
    std::vector<std::string> names;
    for (const TensorView& view : tensors) names.push_back(view.name);
    held_.reset();
    digests_.clear();
    SYNCLINE_TRY(options_.load_baseline(version, names, *baseline_, cancel));
    held_ = version;
  }
  return CheckSameTensors(baseline_->tensors(), tensors, version);
}

// Step 1: who writes what several have.
Status Publisher::Survey(Work& work) {
  Announcement survey;
  survey.state = Announcement::State::kSurvey;
  survey.version = work.manifest.version;
  survey.base_version = work.manifest.base_version;
  SYNCLINE_TRY(group_->Announce(survey));
  SYNCLINE_ASSIGN(RankPart own, MakePart(work, survey));
  SYNCLINE_ASSIGN(std::vector<RankPart> parts, group_->Collect(work.directory, work.cancel));
  parts.insert(parts.begin(), std::move(own));
  skip_.clear();
  owners_.clear();
  surveyed_.clear();
  std::map<std::string, const ManifestTensor*> seen;
  for (std::uint64_t rank = 0; rank < parts.size(); ++rank) {
    surveyed_.push_back(parts[rank].names_hash);
    for (const ManifestTensor& tensor : parts[rank].tensors) {
      const auto [first, fresh] = seen.emplace(tensor.name, &tensor);
      if (fresh) {
        owners_.emplace(tensor.name, rank);
        continue;
      }
      if (!SameMeaning(*first->second, tensor))
        return Differ(tensor.name, rank, *first->second, tensor);
      skip_[rank].push_back(tensor.name);
    }
  }
  return {};
}

std::unexpected<base::Error> Publisher::Differ(const std::string& name, std::uint64_t rank,
                                               const ManifestTensor& of_owner,
                                               const ManifestTensor& of_rank) const {
  return Fail(Code::kInvalidArgument,
              fmt::format("tensor {} differs between rank {} ({}) and rank {} ({})", name,
                          owners_.at(name), Describe(of_owner), rank, Describe(of_rank)));
}

// Step 3 up to the index: puts the parts together.
Status Publisher::Merge(Work& work, std::vector<RankPart>& parts) {
  Manifest& manifest = work.manifest;
  std::map<std::string, ManifestTensor> tensors;
  manifest.tensors_total = manifest.elements = manifest.elements_changed = manifest.full_bytes = 0;
  manifest.files.clear();
  manifest.copy_tensors.clear();
  work.weight_map.clear();
  work.copy_map.clear();
  for (RankPart& part : parts) {
    manifest.tensors_total += part.tensors_total;
    manifest.elements += part.elements;
    manifest.elements_changed += part.elements_changed;
    manifest.full_bytes += part.full_bytes;
    std::ranges::move(part.files, std::back_inserter(manifest.files));
    std::ranges::move(part.weight_map, std::back_inserter(work.weight_map));
    std::ranges::move(part.copy_map, std::back_inserter(work.copy_map));
    std::ranges::move(part.copy_tensors, std::back_inserter(manifest.copy_tensors));
    for (ManifestTensor& tensor : part.tensors) {
      const std::string name = tensor.name;
      if (tensors.emplace(name, std::move(tensor)).second) continue;
      return Fail(Code::kInternal, fmt::format("two ranks wrote tensor {}", name));
    }
  }
  // Both changed it to the same, or neither changed it.
  for (const auto& [rank, names] : skip_) {
    for (const std::string& name : names) {
      const auto of_owner = tensors.find(name);
      const auto of_rank = std::ranges::find(parts[rank].skipped, name, &ManifestTensor::name);
      const bool by_owner = of_owner != tensors.end();
      const bool by_rank = of_rank != parts[rank].skipped.end();
      if (!by_owner && !by_rank) continue;
      if (by_owner && by_rank && SameMeaning(of_owner->second, *of_rank)) continue;
      ManifestTensor unchanged = by_owner ? of_owner->second : *of_rank;
      unchanged.hash.clear();
      return Differ(name, rank, by_owner ? of_owner->second : unchanged,
                    by_rank ? *of_rank : unchanged);
    }
  }
  manifest.tensors.clear();
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  std::ranges::sort(manifest.copy_tensors, {}, &ManifestTensor::name);
  // Not by a rank of an earlier release.
  if (manifest.copy_tensors.size() != manifest.tensors_total) manifest.copy_tensors.clear();
  if (!manifest.base_version || !last_totals_) return {};
  if (manifest.tensors_total == last_totals_->tensors_total &&
      manifest.elements == last_totals_->elements &&
      manifest.full_bytes == last_totals_->full_bytes) {
    return {};
  }
  return Fail(
      Code::kInvalidArgument,
      fmt::format("the ranks hold {} tensors of {} bytes together, version {} has {} of {}; "
                  "publish a full version to change them",
                  manifest.tensors_total, manifest.full_bytes, *manifest.base_version,
                  last_totals_->tensors_total, last_totals_->full_bytes));
}

// The indexes of a full version or copy, and what belongs to it.
Status Publisher::WriteFullIndexes(Work& work, std::string_view folder,
                                   const checkpoint::WeightMap& map,
                                   const checkpoint::Stems& components) {
  std::map<std::string, checkpoint::WeightMap> maps;  // by the component's folder
  if (components.empty()) maps[""] = map;
  for (const auto& [tensor, file] : map) {
    if (components.empty()) break;
    const std::string component(checkpoint::FolderOfTensor(tensor));
    const std::size_t skip = component.size() + 1;
    maps[component].emplace_back(tensor.substr(skip), file.substr(skip));
  }
  const std::string directory = base::JoinPath(work.directory, folder);
  for (auto& [component, own] : maps) {
    const auto stem = components.find(component);
    const std::string inside = base::JoinPath(directory, component);
    SYNCLINE_ASSIGN(const std::uint64_t bytes, TensorBytes(*files_, inside, FilesOf(own, "")));
    SYNCLINE_TRY(WriteIndex(
        work, base::JoinPath(folder, component),
        stem == components.end() ? checkpoint::kModelStem : std::string_view(stem->second),
        {{"total_size", bytes}}, std::move(own)));
  }
  if (options_.companions_from.empty()) return {};
  std::vector<std::string> names;
  SYNCLINE_TRY(CopyCompanions(*files_, options_.companions_from, directory, !components.empty(),
                              options_.durable, names));
  for (const std::string& name : names) work.written.push_back(base::JoinPath(folder, name));
  return {};
}

Status Publisher::WriteIndex(Work& work, std::string_view folder, std::string_view stem,
                             base::Json::Object metadata, checkpoint::WeightMap map) {
  checkpoint::Index index{.metadata = std::move(metadata), .weight_map = std::move(map)};
  SYNCLINE_ASSIGN(const std::string text, BoundedIndexText(std::move(index)));
  work.written.push_back(base::JoinPath(folder, checkpoint::IndexNameOf(stem)));
  return base::WriteTextAtomically(*files_, base::JoinPath(work.directory, work.written.back()),
                                   text, options_.durable);
}

Status Publisher::FinishRanks(Work& work, const Announcement& announcement) {
  Manifest& manifest = work.manifest;
  work.written.clear();
  if (manifest.base_version) {
    SYNCLINE_TRY(WriteIndex(work, "", checkpoint::kModelStem,
                            DeltaMetadata({.version = manifest.version,
                                           .base_version = *manifest.base_version,
                                           .encoding = options_.encoding.encoding}),
                            std::move(work.weight_map)));
  } else {
    SYNCLINE_TRY(WriteFullIndexes(work, "", work.weight_map, announcement.components));
  }
  if (announcement.full_copy) {
    SYNCLINE_TRY(WriteFullIndexes(work, kFullCopyFolder, work.copy_map, announcement.components));
    work.report.full_copy = true;
  }
  SYNCLINE_TRY(HashFiles(work));
  if (manifest.base_version) {
    manifest.chain_bytes = announcement.full_copy ? 0 : chain_bytes_ + DeltaBytes(manifest);
  }
  // What a rank that came to nothing left there.
  std::set<std::string> listed;
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
  return RemoveUnlisted(*files_, work.directory, listed);
}

Status Publisher::LeadAttempts(Work& work) {
  const double due =
      options_.full_copy_ratio * static_cast<double>(last_totals_ ? last_totals_->full_bytes : 0);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    SYNCLINE_ASSIGN(work.directory, sink_->Stage(VersionName(work.manifest.version)));
    if (surveyed_.empty()) SYNCLINE_TRY(Survey(work));
    // The size of this delta is not known yet: that of the last one stands for it.
    const bool dear = work.manifest.base_version && due > 0 &&
                      static_cast<double>(chain_bytes_ + last_delta_bytes_) >= due;
    Announcement open;
    open.state = Announcement::State::kOpen;
    open.version = work.manifest.version;
    open.base_version = work.manifest.base_version;
    open.full_copy = dear;
    open.skip = skip_;
    if (!open.base_version || open.full_copy) {
      std::vector<std::string_view> names;
      names.reserve(owners_.size());
      for (const auto& [name, rank] : owners_) names.emplace_back(name);
      SYNCLINE_ASSIGN(open.components, ChooseStems(*files_, names, options_.companions_from));
    }
    SYNCLINE_TRY(group_->Announce(open));
    SYNCLINE_ASSIGN(RankPart own, MakePart(work, open));
    SYNCLINE_ASSIGN(std::vector<RankPart> parts, group_->Collect(work.directory, work.cancel));
    parts.insert(parts.begin(), std::move(own));
    if (!std::ranges::equal(surveyed_, parts, {}, {}, &RankPart::names_hash)) {
      surveyed_.clear();
      continue;
    }
    SYNCLINE_TRY(Merge(work, parts));
    SYNCLINE_TRY(FinishRanks(work, open));
    if (work.manifest.base_version) last_delta_bytes_ = DeltaBytes(work.manifest);
    return Commit(work);
  }
  return Fail(Code::kInvalidArgument, "the tensors of the ranks change while they publish");
}

Result<PublishReport> Publisher::Lead(Work work, std::optional<std::uint64_t> asked) {
  group_->BeginCall();
  const auto lead = [&]() -> Result<PublishReport> {
    SYNCLINE_TRY(Settle(work.cancel));
    SYNCLINE_TRY(OrderTensors(work.tensors, *pool_, work.cancel));
    work.full = work.full || !last_version_ || (!options_.load_baseline && held_ != last_version_);
    SYNCLINE_ASSIGN(const std::uint64_t version, ChooseVersion(asked, work.full));
    if (!work.full) SYNCLINE_TRY(EnsureBaseline(*last_version_, work.tensors, work.cancel));
    StartManifest(work, version);
    SYNCLINE_TRY(LeadAttempts(work));
    return Report(work);
  };
  Result<PublishReport> report = lead();
  if (!report) {
    group_->AnnounceFailure(report.error());
  } else {
    (void)group_->AnnounceEnd();  // the others see the version
  }
  return report;
}

// Step 4. Nothing yet; or the version, whose manifest must hold what this rank contributed.
Result<std::optional<ReadManifestResult>> Publisher::FindOwn(std::uint64_t version,
                                                             const RankPart& part) {
  SYNCLINE_ASSIGN(std::optional<ReadManifestResult> read,
                  ReadManifest(*files_, sink_->FolderUrl(VersionName(version))));
  if (!read) return std::nullopt;
  for (const std::vector<ManifestTensor>* tensors : {&part.tensors, &part.skipped}) {
    for (const ManifestTensor& tensor : *tensors) {
      const auto found =
          std::ranges::lower_bound(read->manifest.tensors, tensor.name, {}, &ManifestTensor::name);
      if (found != read->manifest.tensors.end() && found->name == tensor.name &&
          SameMeaning(*found, tensor)) {
        continue;
      }
      return Fail(Code::kOutOfOrder,
                  fmt::format("version {} was published without the tensor {} of rank {}", version,
                              tensor.name, options_.ranks.rank));
    }
  }
  return read;
}

Result<std::optional<ReadManifestResult>> Publisher::FollowAttempt(
    Work& work, const Announcement& announcement) {
  work.manifest.version = announcement.version;
  work.manifest.base_version = announcement.base_version;
  work.directory = base::JoinPath(sink_->OwnPath("staging"), VersionName(announcement.version));
  work.lines.clear();
  const auto make = [&]() -> Result<RankPart> {
    if (work.asked && *work.asked != announcement.version) {
      return Fail(Code::kInvalidArgument, fmt::format("asked for version {}, rank 0 for version {}",
                                                      *work.asked, announcement.version));
    }
    if (work.full && announcement.base_version) {
      return Fail(Code::kInvalidArgument, "asked for a full version, rank 0 for a delta");
    }
    if (announcement.base_version) {
      SYNCLINE_TRY(EnsureBaseline(*announcement.base_version, work.tensors, work.cancel));
    }
    return MakePart(work, announcement);
  };
  Result<RankPart> part = make();
  if (!part) {
    // Rank 0 may have begun anew and emptied staging meanwhile.
    const auto now = group_->Look(announcement);
    if (now && *now == RankGroup::Progress::kSuperseded) return std::nullopt;
    group_->ContributeFailure(announcement, part.error());
    return std::unexpected(std::move(part).error());
  }
  SYNCLINE_TRY(group_->Contribute(announcement, *part));
  if (announcement.state == Announcement::State::kSurvey) return std::nullopt;
  std::optional<ReadManifestResult> published;
  const auto step = [&]() -> Result<bool> {
    SYNCLINE_ASSIGN(published, FindOwn(announcement.version, *part));
    if (published) return true;
    SYNCLINE_ASSIGN(const RankGroup::Progress now, group_->Look(announcement));
    if (now == RankGroup::Progress::kWaiting) return false;
    // The version may have come between the two looks.
    SYNCLINE_ASSIGN(published, FindOwn(announcement.version, *part));
    return true;
  };
  SYNCLINE_TRY(group_->Wait(
      step,
      [&] { return fmt::format("rank 0 has not published version {}", announcement.version); },
      work.cancel));
  return published;
}

Result<PublishReport> Publisher::Follow(Work work) {
  SYNCLINE_TRY(OrderTensors(work.tensors, *pool_, work.cancel));
  while (true) {
    SYNCLINE_ASSIGN(const Announcement announcement, group_->AwaitAttempt(work.cancel));
    auto published = FollowAttempt(work, announcement);
    if (published && !*published) continue;
    group_->EndCall(announcement);
    if (!published) {
      if (published.error().code == Code::kCancelled) {
        group_->ContributeFailure(announcement, published.error());
      }
      return std::unexpected(std::move(published).error());
    }
    const Manifest& manifest = (*published)->manifest;
    TakeOver({.version = manifest.version, .manifest = *published});
    held_.reset();
    digests_.clear();
    if (Status moved = baseline_->Advance(manifest.version, work.tensors, work.lines, *pool_);
        !moved) {
      return Annotate(
          std::move(moved).error(),
          fmt::format("version {} stands, but what follows its commit failed", manifest.version));
    }
    held_ = manifest.version;
    digests_ = std::move(work.digests);
    work.manifest = manifest;
    work.report.identity = (*published)->identity;
    work.report.full_copy = manifest.base_version && HasFullCopy(manifest);
    for (const ManifestFile& file : manifest.files) work.report.bytes += file.bytes;
    work.report.bytes += (*published)->text.size();
    SYNCLINE_TRY(CallAfter(manifest.version));
    return Report(work);
  }
}

}  // namespace syncline::store
