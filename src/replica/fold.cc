// 1. Look at both versions. Take the lock of folds, so that staging and scratch are ours; what one
//    that was killed has left there goes. Take a lease on the versions.
// 2. Make both ends (fold_ends.h), proven by what the store knows of them.
// 3. Write the delta between them into staging, and carry it out once (fold_delta.h): the hashes
//    must come out. Nothing in the store has changed so far.
// 4. The version that it leads to must still be the one that stands there. The sink commits, as it
//    does a version.
// 5. syncline.folds.json follows. If the process dies before, the next fold or gc makes up for it.
// Whatever ends it, scratch and staging are removed.
//
// Beside a gc: the lease, or elsewhere the time of grace, holds the versions. Where it removes the
// target all the same, after 4, the fold leads to nothing, no reader takes it, and the next gc
// removes it.
#include "replica/fold.h"

#include <fmt/format.h>

#include <chrono>

#include "replica/fold_delta.h"
#include "replica/fold_ends.h"
#include "replica/plan.h"
#include "store/file_hash.h"
#include "store/retention.h"
#include "store/sink.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using store::Described;

// A folder that goes at the end.
class Scratch {
 public:
  Scratch(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  ~Scratch() { (void)files_.RemoveAll(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Empty.
  Status Make() const {
    SYNCLINE_TRY(files_.RemoveAll(path_));
    return files_.MakeDirectories(path_);
  }
  const std::string& path() const { return path_; }

 private:
  FileSystem& files_;
  std::string path_;
};

class Folder {
 public:
  Folder(FileSystem& files, const FoldOptions& options)
      : files_(files),
        options_(options),
        range_{options.from, options.to},
        name_(store::FoldName(range_)),
        progress_(options.progress != nullptr ? *options.progress : no_progress_),
        pool_(options.threads) {}

  Result<FoldReport> Run(const std::string& store) {
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_TRY(Look(store));
    SYNCLINE_TRY(Take(store));
    const Scratch scratch(files_, ScratchPath());
    SYNCLINE_TRY(scratch.Make());
    SYNCLINE_TRY(MakeEnds(scratch.path()));
    SYNCLINE_ASSIGN(const std::string staged, sink_->Stage(name_));
    const Scratch staging(files_, base::ParentOf(staged));
    const FoldDelta delta{.range = range_,
                          .run = target_.manifest->manifest.run,
                          .base = held_.identity,
                          .target = target_.identity,
                          .encoding = options_.encoding,
                          .durable = options_.durable};
    SYNCLINE_ASSIGN(WrittenFold written, WriteFoldDelta(files_, delta, from_, to_, staged, pool_,
                                                        progress_, options_.cancel));
    manifest_ = std::move(written.manifest);
    report_.tensors_changed = written.tensors_changed;
    SYNCLINE_TRY(CarryOutFold(files_, delta, from_, staged, base::JoinPath(scratch.path(), "check"),
                              pool_, progress_, options_.cancel));
    SYNCLINE_TRY(Commit(staged));
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  // Step 1: what the store says of both versions.
  Status Look(const std::string& store) {
    if (range_.from >= range_.to) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("a fold cannot lead from version {} to {}", range_.from, range_.to));
    }
    if (!options_.signing_key.empty()) {
      SYNCLINE_ASSIGN(key_, store::SigningKey::Read(files_, options_.signing_key));
    }
    source_options_ = options_.source;
    source_options_.cancel = options_.cancel;
    SYNCLINE_ASSIGN(source_, store::Source::Open(files_, store, source_options_));
    SYNCLINE_TRY(source_->Refresh(range_.to));
    SYNCLINE_ASSIGN(target_, source_->Describe(range_.to));
    if (!target_.manifest) {
      return Fail(Code::kIncompatible,
                  fmt::format("version {} of {} has no manifest: only what our publisher made can "
                              "be folded",
                              range_.to, source_->url()));
    }
    if (target_.delta && target_.delta->base_version == range_.from) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("version {} of {} is a delta on version {} already", range_.to,
                              source_->url(), target_.delta->base_version));
    }
    return {};
  }

  Status Take(const std::string& store) {
    SYNCLINE_ASSIGN(sink_, store::OpenSink(files_, store,
                                           {.durable = options_.durable,
                                            .work_directory = options_.work_directory,
                                            .objects = options_.source.connection,
                                            .use = store::SinkUse::kFold}));
    const auto there = source_->DescribeFold(range_);
    if (there) {
      return Fail(Code::kAlreadyExists, fmt::format("{} is in {} already", name_, source_->url()));
    }
    if (source_->is_directory()) {
      SYNCLINE_ASSIGN(const bool exists, base::Exists(files_, sink_->FolderUrl(name_)));
      if (exists) {
        return Fail(Code::kAlreadyExists,
                    fmt::format("{} is there, and cannot be read: {}", sink_->FolderUrl(name_),
                                there.error().message));
      }
    }
    lease_ = store::TakeLease(source_->objects(), 0, range_.to, files_);
    return {};
  }

  std::string ScratchPath() const {
    if (options_.work_directory.empty() || sink_->local_path().empty()) {
      return sink_->OwnPath("fold-work");
    }
    // Two stores may be folded at the same place.
    const std::string store = store::Sha256Hex(base::AsBytes(source_->url())).substr(0, 16);
    return base::JoinPath(options_.work_directory, "fold-" + store);
  }

  // Step 2.
  Status MakeEnds(const std::string& scratch) {
    FoldEnds ends(files_, *source_, source_options_, scratch, pool_, options_.threads, progress_,
                  options_.cancel);
    SYNCLINE_ASSIGN(const std::string identity,
                    ends.FindIdentity(range_.from, target_, options_.base));
    // Of a seed nobody knows a run.
    held_ = {.version = range_.from,
             .token = {},
             .run = identity.empty() ? std::string() : target_.manifest->manifest.run,
             .identity = identity};
    SYNCLINE_TRY(CheckRun());
    if (options_.base.empty()) {
      SYNCLINE_ASSIGN(from_, ends.FromStore(range_.from));
    } else {
      SYNCLINE_ASSIGN(from_, ends.FromBase(options_.base, held_));
    }
    report_.bytes_without = BytesWithout();
    RenewLease();
    auto to = ends.Follow(range_.to, from_, held_);
    if (!to) {
      return Annotate(
          std::move(to).error(),
          fmt::format("version {} cannot be made from version {}", range_.to, range_.from));
    }
    to_ = *std::move(to);
    RenewLease();
    return {};
  }

  // Of all files that one reads who holds the first version and knows no fold.
  std::optional<std::uint64_t> BytesWithout() {
    const auto plan = MakePlan(*source_, range_.to, &held_, "", {.use = false});
    if (!plan) return std::nullopt;
    std::uint64_t bytes = plan->bytes;
    for (const Described& delta : plan->deltas) {
      if (delta.manifest) bytes += delta.manifest->text.size();
    }
    return bytes;
  }

  Status CheckRun() {
    SYNCLINE_ASSIGN(const bool there, source_->Has(range_.from));
    if (!there) return {};
    SYNCLINE_ASSIGN(const Described from, source_->Describe(range_.from));
    const std::string& run = from.manifest->manifest.run;
    if (run == target_.manifest->manifest.run) return {};
    return Fail(
        Code::kOutOfOrder,
        fmt::format("versions {} and {} of {} are of different runs: {:.12}… and {:.12}…",
                    range_.from, range_.to, source_->url(), run, target_.manifest->manifest.run));
  }

  // Steps 4 and 5.
  Status Commit(const std::string& staged) {
    RenewLease();
    SYNCLINE_ASSIGN(const Described now, source_->Describe(range_.to));
    if (now.identity != target_.identity) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("version {} of {} is another one by now", range_.to, source_->url()));
    }
    store::StagedVersion version{.name = name_,
                                 .directory = staged,
                                 .files = {},
                                 .manifest_text = store::ManifestText(manifest_),
                                 .signature_text = {}};
    report_.bytes = version.manifest_text.size();
    for (const store::ManifestFile& file : manifest_.files) {
      version.files.push_back(file.name);
      report_.bytes += file.bytes;
    }
    if (version.manifest_text.size() > store::kMaxManifestBytes) {
      return Fail(Code::kLimitExceeded,
                  fmt::format("a manifest of {} bytes, the limit is {}",
                              version.manifest_text.size(), store::kMaxManifestBytes));
    }
    if (key_) version.signature_text = key_->Sign(version.manifest_text);
    report_.bytes += version.signature_text.size();
    store::CommitResult commit = sink_->Commit(version, progress_, options_.cancel);
    if (commit.outcome != store::Outcome::kCommitted) return commit.status;
    Report(version.manifest_text);
    Status after = std::move(commit.status);
    // What stands is told of, whoever wants to stop now.
    Status told = store::UpdateFolds(source_->objects(), nullptr);
    if (after) after = std::move(told);
    if (after) return {};
    return Annotate(std::move(after).error(),
                    fmt::format("{} stands, but what follows its commit failed", name_));
  }

  void Report(const std::string& manifest_text) {
    report_.from = range_.from;
    report_.to = range_.to;
    report_.identity = store::Identity(manifest_text);
    report_.url = sink_->FolderUrl(name_);
    report_.tensors = manifest_.tensors_total;
    report_.elements = manifest_.elements;
    report_.elements_changed = manifest_.elements_changed;
  }

  void RenewLease() {
    if (lease_ != nullptr) lease_->Renew();
  }

  FileSystem& files_;
  const FoldOptions& options_;
  const store::FoldRange range_;
  const std::string name_;
  base::Progress no_progress_;
  base::Progress& progress_;
  base::ThreadPool pool_;
  std::optional<store::SigningKey> key_;
  store::SourceOptions source_options_;
  std::unique_ptr<store::Source> source_;
  Described target_;
  std::unique_ptr<store::Sink> sink_;
  std::unique_ptr<store::Lease> lease_;
  HeldVersion held_;  // what is known of range_.from
  FoldEnd from_;
  FoldEnd to_;
  store::Manifest manifest_;
  FoldReport report_;
};

}  // namespace

Result<FoldReport> Fold(FileSystem& files, const std::string& store, const FoldOptions& options) {
  return Folder(files, options).Run(store);
}

}  // namespace syncline::replica
