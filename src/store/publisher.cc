// Publishing version N:
// 1. If the last call left a commit of which nothing is known, or a baseline behind its version:
//    look at the store, get the baseline back. Where that cannot be done this version is full.
// 2. Everything is written into the staging directory of the sink, each file synced if `durable`;
//    then all files are hashed and listed in the manifest.
// 3. The sink commits. Before that nothing has happened; after it the version stands, whatever else
//    fails.
// 4. The newest pointer moves, then the baseline. If the process dies between 3 and 4 nothing is
//    lost: the next publisher takes N as its baseline and moves the pointer.
#include "store/publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "store/delta_reader.h"
#include "store/delta_writer.h"
#include "store/file_hash.h"
#include "store/full_writer.h"
#include "store/publisher_work.h"
#include "store/tensor_set.h"

namespace syncline::store {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using tensor::TensorView;

std::uint64_t NowNs() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

std::uint64_t TotalBytes(const std::vector<ManifestFile>& files) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace

std::uint64_t DeltaBytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) {
    if (!file.name.starts_with(kFullCopyFolder)) bytes += file.bytes;
  }
  return bytes;
}

Result<Publisher> Publisher::Open(FileSystem& files, const std::string& store,
                                  std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                  PublisherOptions options) {
  // A wrong key is known before anything is made.
  if (!options.signing_key.empty()) SYNCLINE_TRY(SigningKey::Read(files, options.signing_key));
  SYNCLINE_ASSIGN(auto sink, OpenSink(files, store,
                                      {.durable = options.durable,
                                       .exclusive = options.ranks.rank == 0,
                                       .work_directory = options.work_directory,
                                       .objects = options.objects}));
  return Open(files, std::move(sink), std::move(baseline), based_at_zero, std::move(options));
}

Result<Publisher> Publisher::Open(FileSystem& files, std::unique_ptr<Sink> sink,
                                  std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                  PublisherOptions options) {
  Publisher publisher;
  publisher.files_ = &files;
  publisher.sink_ = std::move(sink);
  if (!(options.full_copy_ratio >= 0)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("full_copy_ratio {}: expected 0 or more", options.full_copy_ratio));
  }
  if (!options.signing_key.empty()) {
    SYNCLINE_ASSIGN(publisher.key_, SigningKey::Read(files, options.signing_key));
  }
  SYNCLINE_ASSIGN(const std::optional<NewestVersion> newest, publisher.sink_->FindNewest(nullptr));
  publisher.run_ = DrawRun();
  if (newest) {
    publisher.TakeOver(*newest);
    if (newest->manifest && options.ranks.rank == 0) {
      SYNCLINE_TRY(
          publisher.sink_->PointTo({publisher.run_, newest->version, publisher.parent_}, nullptr));
    }
  } else if (based_at_zero) {
    publisher.last_version_ = 0;
  }
  if (options.ranks.world != 1 || options.ranks.rank != 0) {
    const std::string local = publisher.sink_->local_path();
    if (local.empty()) {
      return Fail(Code::kInvalidArgument,
                  publisher.sink_->url() + ": several ranks can publish to a directory only");
    }
    SYNCLINE_ASSIGN(publisher.group_,
                    RankGroup::Open(files, OwnDirectory(local), options.ranks, options.durable));
  }
  publisher.baseline_ = std::move(baseline);
  publisher.options_ = std::move(options);
  publisher.pool_ = std::make_unique<base::ThreadPool>(publisher.options_.threads);
  return publisher;
}

// A foreign version has no manifest: the run, if there was one, ends with it.
void Publisher::TakeOver(const NewestVersion& newest) {
  last_version_ = newest.version;
  holds_versions_ = true;
  if (!newest.manifest) return;
  run_ = newest.manifest->manifest.run;
  parent_ = newest.manifest->identity;
  const Manifest& manifest = newest.manifest->manifest;
  chain_bytes_ = manifest.chain_bytes;
  last_totals_ = {manifest.tensors_total, manifest.elements, manifest.full_bytes};
}

Status Publisher::Settle(const base::CancelToken* cancel) {
  if (unsure_) {
    SYNCLINE_ASSIGN(const std::optional<NewestVersion> newest, sink_->FindNewest(cancel));
    const bool stands = newest && newest->version == unsure_->version && newest->manifest &&
                        newest->manifest->identity == unsure_->identity;
    if (stands) {
      TakeOver(*newest);
      stale_ = true;
    } else if (newest && (!last_version_ || newest->version > *last_version_)) {
      return Fail(Code::kAlreadyExists, fmt::format("another publisher made version {} of {}",
                                                    newest->version, sink_->url()));
    }
    unsure_.reset();
  }
  if (!stale_) return {};
  digests_.clear();
  if (group_) {  // each rank loads its tensors when a delta needs them
    held_.reset();
    stale_ = false;
    return {};
  }
  SYNCLINE_ASSIGN(const bool recovered, baseline_->Recover(*last_version_, cancel));
  stale_ = !recovered;
  if (stale_) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: the baseline is not at version {}: the next version is a full one",
                          sink_->url(), *last_version_));
  }
  return {};
}

Result<std::uint64_t> Publisher::ChooseVersion(std::optional<std::uint64_t> asked,
                                               bool full) const {
  const std::uint64_t next = last_version_ ? *last_version_ + 1 : 0;
  const std::uint64_t version = asked.value_or(next);
  if (last_version_ && version <= *last_version_) {
    return Fail(Code::kAlreadyExists, fmt::format("version {} is not newer than version {}, the "
                                                  "last one of {}",
                                                  version, *last_version_, sink_->url()));
  }
  if (!full && version != next) {
    return Fail(
        Code::kOutOfOrder,
        fmt::format("a delta must be the next version: expected {}, asked for {}", next, version));
  }
  return version;
}

// Step 2 without the manifest.
Status Publisher::WriteFiles(Work& work) {
  Manifest& manifest = work.manifest;
  if (work.full) {
    SYNCLINE_ASSIGN(work.written,
                    WriteFull(*files_, work.directory, work.tensors, options_.companions_from,
                              options_.durable, work.loader, *pool_, work.progress, work.cancel));
    SYNCLINE_TRY(HashFull(work));
    manifest.elements_changed = manifest.elements;
    return HashFiles(work);
  }
  const DeltaInfo info{.version = manifest.version,
                       .base_version = *manifest.base_version,
                       .encoding = options_.encoding.encoding};
  SYNCLINE_ASSIGN(DeltaCounts counts,
                  WriteDelta(*files_, work.directory, baseline_->tensors(), work.tensors, info,
                             {.prefix = {},
                              .durable = options_.durable,
                              .loader = work.loader,
                              .arrivals = work.arrivals,
                              .choice = options_.encoding,
                              .digests = &work.digests},
                             work.lines, *pool_, work.progress, work.cancel));
  manifest.tensors_in_files = info.encoding == delta::Encoding::kCompact;
  if (manifest.tensors_in_files) {
    work.report.tensors_changed = counts.tensors_changed;
  } else {
    manifest.tensors = std::move(counts.tensors);
  }
  manifest.elements_changed = counts.elements_changed;
  work.written = std::move(counts.files);
  SYNCLINE_TRY(HashFiles(work));
  manifest.chain_bytes = chain_bytes_ + TotalBytes(manifest.files);
  // What came one after the other is gone; the next version carries the copy.
  const bool due = work.arrivals == nullptr && CopyDue(manifest.chain_bytes, manifest.full_bytes);
  return due ? WriteFullCopy(work) : Status();
}

bool Publisher::CopyDue(std::uint64_t chain_bytes, std::uint64_t full_bytes) const {
  return options_.full_copy_ratio > 0 &&
         static_cast<double>(chain_bytes) >=
             options_.full_copy_ratio * static_cast<double>(full_bytes);
}

bool Publisher::can_take_arriving() const {
  return !group_ && !stale_ && !unsure_ && last_version_ && last_totals_ &&
         !baseline_->tensors().empty() && options_.encoding.encoding == delta::Encoding::kCompact &&
         !CopyDue(chain_bytes_, last_totals_->full_bytes);
}

// Of a full version: what is read from files is hashed as it was written, whatever became of the
// files since.
Status Publisher::HashFull(Work& work) {
  std::vector<ManifestTensor>& tensors = work.manifest.tensors;
  if (work.loader == nullptr) {
    SYNCLINE_ASSIGN(tensors, HashTensors(work.tensors, nullptr, *pool_, work.cancel));
  } else {
    SYNCLINE_ASSIGN(const auto written,
                    checkpoint::CheckpointReader::Open(*files_, work.directory));
    SYNCLINE_ASSIGN(tensors, HashTensors(written.Views(), &written, *pool_, work.cancel));
  }
  work.digests.clear();
  if (!std::ranges::equal(tensors, work.tensors, {}, &ManifestTensor::name, &TensorView::name)) {
    return {};
  }
  for (const ManifestTensor& tensor : tensors) work.digests.push_back(tensor.digest);
  return {};
}

Status Publisher::WriteFullCopy(Work& work) {
  const std::string directory = base::JoinPath(work.directory, kFullCopyFolder);
  SYNCLINE_TRY(files_->MakeDirectories(directory));
  SYNCLINE_ASSIGN(std::vector<std::string> names,
                  WriteFull(*files_, directory, work.tensors, options_.companions_from,
                            options_.durable, work.loader, *pool_, work.progress, work.cancel));
  work.written.clear();
  for (const std::string& name : names) {
    work.written.push_back(base::JoinPath(kFullCopyFolder, name));
  }
  work.manifest.chain_bytes = 0;
  for (std::size_t i = 0; i < work.tensors.size(); ++i) {
    const TensorView& view = work.tensors[i];
    work.manifest.copy_tensors.push_back({view.name, view.dtype, view.shape, {}, work.digests[i]});
  }
  work.report.full_copy = true;
  return HashFiles(work);
}

// Lists work.written in the manifest.
Status Publisher::HashFiles(Work& work) {
  SYNCLINE_ASSIGN(std::vector<ManifestFile> files,
                  ListFiles(*files_, work.directory, work.written, *pool_, work.cancel));
  std::ranges::move(files, std::back_inserter(work.manifest.files));
  std::ranges::sort(work.manifest.files, {}, &ManifestFile::name);
  return {};
}

// Steps 3 and 4.
Status Publisher::Commit(Work& work) {
  const std::uint64_t version = work.manifest.version;
  StagedVersion staged{.name = VersionName(version),
                       .directory = work.directory,
                       .files = {},
                       .manifest_text = ManifestText(work.manifest),
                       .signature_text = {}};
  if (staged.manifest_text.size() > kMaxManifestBytes) {
    return Fail(Code::kLimitExceeded, fmt::format("a manifest of {} bytes, the limit is {}",
                                                  staged.manifest_text.size(), kMaxManifestBytes));
  }
  for (const ManifestFile& file : work.manifest.files) staged.files.push_back(file.name);
  if (key_) staged.signature_text = key_->Sign(staged.manifest_text);
  const Latest latest{run_, version, Identity(staged.manifest_text)};

  // A copy in memory follows by the files, which are opened where they are now.
  Version staged_version;
  std::unique_ptr<DeltaReader> follow;
  if (work.arrivals != nullptr && baseline_->needs_bytes()) {
    SYNCLINE_ASSIGN(staged_version, ReadVersion(*files_, base::ParentOf(work.directory), version));
    SYNCLINE_ASSIGN(follow, DeltaReader::Open(*files_, staged_version, {}));
  }
  CommitResult commit = sink_->Commit(staged, work.progress, work.cancel);
  if (commit.outcome == Outcome::kUnknown) unsure_ = latest;
  if (commit.outcome != Outcome::kCommitted) return commit.status;
  last_version_ = version;
  holds_versions_ = true;
  parent_ = latest.identity;
  chain_bytes_ = work.manifest.chain_bytes;
  last_totals_ = {work.manifest.tensors_total, work.manifest.elements, work.manifest.full_bytes};
  work.report.identity = latest.identity;
  work.report.bytes =
      TotalBytes(work.manifest.files) + staged.manifest_text.size() + staged.signature_text.size();
  Status after = std::move(commit.status);
  if (Status pointed = sink_->PointTo(latest, work.cancel); after) after = std::move(pointed);
  Status moved = follow != nullptr ? baseline_->AdvanceBy(version, *follow, *pool_)
                                   : baseline_->Advance(version, work.tensors, work.lines, *pool_);
  stale_ = !moved;
  held_ = moved ? std::optional(version) : std::nullopt;
  digests_ = moved ? std::move(work.digests) : std::vector<std::optional<tensor::Digest>>();
  if (after) after = std::move(moved);
  if (!after) {
    return Annotate(std::move(after).error(),
                    fmt::format("version {} stands, but what follows its commit failed", version));
  }
  return CallAfter(version);
}

Status Publisher::CallAfter(std::uint64_t version) const {
  if (!options_.after_publish) return {};
  Status called = options_.after_publish(version, sink_->FolderUrl(VersionName(version)));
  if (called) return {};
  return Annotate(
      std::move(called).error(),
      fmt::format("version {} stands, but what was to be done after it failed", version));
}

void Publisher::StartManifest(Work& work, std::uint64_t version) {
  work.manifest = {.run = run_,
                   .version = version,
                   .base_version = work.full ? std::nullopt : last_version_,
                   .parent = parent_,
                   .created_ns = NowNs()};
}

PublishReport Publisher::Report(Work& work) const {
  const Manifest& manifest = work.manifest;
  PublishReport& report = work.report;
  report.version = manifest.version;
  report.url = sink_->FolderUrl(VersionName(manifest.version));
  report.base_version = manifest.base_version;
  report.tensors = manifest.tensors_total;
  if (!manifest.tensors_in_files) report.tensors_changed = manifest.tensors.size();
  report.elements = manifest.elements;
  report.elements_changed = manifest.elements_changed;
  report.full_bytes = manifest.full_bytes;
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - work.begin).count();
  return std::move(report);
}

Result<PublishReport> Publisher::Publish(std::optional<std::uint64_t> asked,
                                         std::vector<TensorView> tensors, bool full,
                                         base::Progress& progress, const base::CancelToken* cancel,
                                         const tensor::Loader* loader) {
  Work work{.asked = asked,
            .tensors = std::move(tensors),
            .full = full,
            .progress = progress,
            .cancel = cancel,
            .loader = loader};
  if (loader != nullptr && (group_ || baseline_->needs_bytes() ||
                            !std::ranges::is_sorted(work.tensors, {}, &TensorView::name))) {
    return Fail(Code::kInvalidArgument,
                "tensors of files can be published by a single rank without a baseline in memory, "
                "by name");
  }
  if (group_) return group_->leads() ? Lead(std::move(work), asked) : Follow(std::move(work));
  SYNCLINE_TRY(Settle(cancel));
  SYNCLINE_TRY(OrderTensors(work.tensors, *pool_, cancel));
  work.full = full || stale_ || baseline_->tensors().empty();
  return PublishAlone(std::move(work));
}

Result<PublishReport> Publisher::PublishArriving(std::optional<std::uint64_t> asked,
                                                 tensor::Arrivals& arrivals,
                                                 base::Progress& progress,
                                                 const base::CancelToken* cancel) {
  if (!can_take_arriving()) {
    return Fail(Code::kInvalidArgument,
                sink_->url() + ": the next version cannot be made of tensors that come one by one");
  }
  std::vector<TensorView> tensors(held().begin(), held().end());
  for (TensorView& view : tensors) {
    view.bytes = base::ByteSpan(static_cast<const std::byte*>(nullptr), view.bytes.size());
  }
  Work work{.asked = asked,
            .tensors = std::move(tensors),
            .full = false,
            .progress = progress,
            .cancel = cancel,
            .arrivals = &arrivals};
  return PublishAlone(std::move(work));
}

Result<PublishReport> Publisher::PublishAlone(Work work) {
  SYNCLINE_ASSIGN(const std::uint64_t version, ChooseVersion(work.asked, work.full));
  if (!work.full) {
    SYNCLINE_TRY(CheckSameTensors(baseline_->tensors(), work.tensors, *last_version_));
    work.digests = digests_;
  }
  SYNCLINE_ASSIGN(const TensorTotals totals, Total(work.tensors));
  StartManifest(work, version);
  work.manifest.tensors_total = work.tensors.size();
  work.manifest.elements = totals.elements;
  work.manifest.full_bytes = totals.bytes;
  SYNCLINE_ASSIGN(work.directory, sink_->Stage(VersionName(version)));
  SYNCLINE_TRY(WriteFiles(work));
  SYNCLINE_TRY(Commit(work));
  return Report(work);
}

}  // namespace syncline::store
