#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "replica/hash_tensors.h"
#include "replica/plan.h"
#include "replica/recover.h"
#include "replica/repair.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "store/delta_reader.h"
#include "store/source.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::Code;
using base::Fail;
using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::Checkpoint;
using store::DeltaTensor;
using store::Version;

class Verifier {
 public:
  Verifier(FileSystem& files, const std::string& path, const VerifyOptions& options)
      : files_(files),
        path_(path),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : no_progress_),
        pool_(options.threads) {}

  Result<VerifyReport> Run() {
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_TRY(Look());
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  Status Look() {
    if (objects::IsRemote(path_)) return VerifyStore();
    SYNCLINE_ASSIGN(const base::FileInfo info, files_.Stat(path_));
    if (info.kind == base::FileInfo::Kind::kDirectory) {
      SYNCLINE_ASSIGN(const auto versions, store::ListVersions(files_, path_));
      if (!versions.empty()) return VerifyStore();
      const ReplicaState state(files_, path_, options_.test_boot_id);
      SYNCLINE_ASSIGN(const bool replica, state.IsReplica());
      if (replica) return options_.repair ? RepairReplica(state) : VerifyReplica(state);
    }
    if (options_.repair) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("{} is no replica: only what was pulled can be repaired", path_));
    }
    SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path_));
    Count(checkpoint);
    return {};
  }

  void Count(const Checkpoint& checkpoint) {
    report_.tensors += checkpoint.tensors().size();
    for (const auto& file : checkpoint.files()) report_.bytes += file.bytes;
  }

  Result<std::unique_ptr<store::Source>> OpenSource(const std::string& url) {
    store::SourceOptions options = options_.source;
    options.cancel = options_.cancel;
    SYNCLINE_ASSIGN(auto source, store::Source::Open(files_, url, std::move(options)));
    SYNCLINE_TRY(source->Refresh(options_.version));
    return source;
  }

  Status VerifyStore() {
    report_.kind = VerifyReport::Kind::kStore;
    if (options_.repair) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("{} is a store: only a replica can be repaired", path_));
    }
    SYNCLINE_ASSIGN(const auto source, OpenSource(path_));
    SYNCLINE_ASSIGN(std::vector<std::uint64_t> versions, source->ListVersions());
    if (options_.version) {
      SYNCLINE_ASSIGN(const bool there, source->Has(*options_.version));
      if (!there) {
        return Fail(Code::kNotFound,
                    fmt::format("version {} is not in {}", *options_.version, path_));
      }
      versions = {*options_.version};
    }
    for (const std::uint64_t number : versions) {
      if (Status status = VerifyVersion(*source, number); !status) {
        return Annotate(std::move(status).error(), fmt::format("version {}", number));
      }
      report_.versions.push_back(number);
    }
    SYNCLINE_ASSIGN(const std::vector<store::FoldRange> folds, source->ListFolds());
    for (const store::FoldRange& fold : folds) {
      if (options_.version && *options_.version != fold.to) continue;
      if (Status status = VerifyFold(*source, fold); !status) {
        return Annotate(std::move(status).error(), store::FoldName(fold));
      }
    }
    return {};
  }

  // One that was removed meanwhile, or that no reader takes as it leads to another version than is
  // there, is not looked at.
  Status VerifyFold(store::Source& source, const store::FoldRange& range) {
    FileSystem& files = source.files();
    const auto described = source.DescribeFold(range);
    if (!described && described.error().code == Code::kNotFound) return {};
    if (!described) return std::unexpected(described.error());
    SYNCLINE_ASSIGN(const bool target, source.Has(range.to));
    if (!target) return {};
    SYNCLINE_ASSIGN(const store::Described version, source.Describe(range.to));
    if (version.identity != described->identity) return {};
    SYNCLINE_ASSIGN(const Version fold,
                    store::ReadVersionIn(files, source.path(), described->folder, range.to));
    SYNCLINE_TRY(store::CheckFiles(files, fold.directory, described->manifest->manifest,
                                   store::Part::kVersion, true, pool_, options_.cancel));
    SYNCLINE_TRY(VerifyFrames(files, fold));
    ++report_.folds;
    return {};
  }

  // Is there another way to a delta whose base is gone? Any checkpoint will do for version 0.
  Result<bool> IsReached(store::Source& source, const store::Described& described) {
    if (described.full_copy_bytes) return true;
    const auto plan = MakePlan(source, described.number, nullptr, path_);
    if (plan) return true;
    if (plan.error().code == Code::kNotFound || plan.error().code == Code::kOutOfOrder) {
      return false;
    }
    return std::unexpected(plan.error());
  }

  Status VerifyVersion(store::Source& source, std::uint64_t number) {
    FileSystem& files = source.files();
    SYNCLINE_ASSIGN(const store::Described described, source.Describe(number));
    SYNCLINE_ASSIGN(const Version version, store::ReadVersion(files, source.path(), number));
    if (described.manifest) {
      SYNCLINE_TRY(store::CheckFiles(files, version.directory, described.manifest->manifest,
                                     store::Part::kAll, true, pool_, options_.cancel));
    }
    if (!version.delta) {
      SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files, version.directory));
      Count(checkpoint);
      return {};
    }
    SYNCLINE_TRY(VerifyFrames(files, version));
    SYNCLINE_ASSIGN(const bool base, source.Has(version.delta->base_version));
    if (base || version.delta->base_version == 0) return {};
    SYNCLINE_ASSIGN(const bool reached, IsReached(source, described));
    if (reached) return {};
    return Fail(Code::kOutOfOrder, fmt::format("it builds on version {}, which is not in {}",
                                               version.delta->base_version, path_));
  }

  Status VerifyFrames(FileSystem& files, const Version& version) {
    std::uint64_t total = 0;
    for (const DeltaTensor& delta : version.tensors) total += delta.bytes;
    progress_.Begin("check", total);
    SYNCLINE_ASSIGN(const auto reader, store::DeltaReader::Open(files, version, {}));
    SYNCLINE_TRY(pool_.ParallelFor(
        reader->runs().size(),
        [&](std::size_t i) -> Status {
          SYNCLINE_ASSIGN(const std::uint64_t bytes, reader->CheckRun(i));
          progress_.Add(bytes);
          return {};
        },
        options_.cancel));
    report_.tensors += version.tensors.size();
    report_.bytes += total;
    return {};
  }

  Status CheckVersion(std::uint64_t held) const {
    if (!options_.version || *options_.version == held) return {};
    return Fail(Code::kOutOfOrder,
                fmt::format("{} is at version {}, expected {}", path_, held, *options_.version));
  }

  // Only looks.
  Status VerifyReplica(const ReplicaState& state) {
    report_.kind = VerifyReport::Kind::kReplica;
    SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kShared, options_.cancel));
    SYNCLINE_ASSIGN(const std::optional<Marker> marker, state.ReadMarker());
    if (!marker) {
      return Fail(Code::kCorrupt, fmt::format("{} holds no whole version: the last pull did not "
                                              "end; pull again, or verify --repair",
                                              path_));
    }
    SYNCLINE_TRY(CheckVersion(marker->version));
    report_.versions = {marker->version};
    SYNCLINE_ASSIGN(const std::optional<Head> head, state.ReadHead());
    const bool ours = head && head->held.version == marker->version &&
                      head->held.token == marker->token && !marker->token.empty();
    if (!ours) {  // made by another program: there is nothing to compare with
      SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path_));
      Count(checkpoint);
      return {};
    }
    SYNCLINE_ASSIGN(const Damage damage,
                    FindDamage(state, *head, nullptr, pool_, progress_, options_.cancel));
    return Report(*head, damage);
  }

  // Whatever is not as it should be is an error; edited companions are only told.
  Status Report(const Head& head, const Damage& damage) {
    report_.edited = damage.companions;
    if (!damage.files.empty()) {
      return Fail(Code::kCorrupt,
                  fmt::format("{}: files of version {} are damaged or missing: {}", path_,
                              head.held.version, fmt::join(damage.files, ", ")));
    }
    SYNCLINE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(files_, path_));
    Count(checkpoint);
    report_.tensors_hashed = checkpoint.tensors().size();
    if (damage.tensors.empty()) return {};
    return Fail(
        Code::kChecksumMismatch,
        fmt::format("{}: checksum mismatch for {} tensors of version {}: {}", path_,
                    damage.tensors.size(), head.held.version, fmt::join(damage.tensors, ", ")));
  }

  Status RepairReplica(const ReplicaState& state) {
    report_.kind = VerifyReport::Kind::kReplica;
    SYNCLINE_ASSIGN(const auto lock, state.Lock(base::LockMode::kExclusive, options_.cancel));
    SYNCLINE_ASSIGN(Held held, Recover(state, pool_, progress_, options_.cancel));
    if (!held.head) {
      return Fail(Code::kCorrupt, fmt::format("{} holds no version that could be repaired: pull "
                                              "one",
                                              path_));
    }
    const Head& head = *held.head;
    SYNCLINE_TRY(CheckVersion(head.held.version));
    if (held.adopted) SYNCLINE_TRY(KeepAdopted(state, head));
    report_.versions = {head.held.version};
    SYNCLINE_ASSIGN(Damage damage,
                    FindDamage(state, head, nullptr, pool_, progress_, options_.cancel));
    if (damage.weights() || !damage.companions.empty()) {
      const std::string& url = options_.store.empty() ? head.source : options_.store;
      if (url.empty()) {
        return Fail(Code::kInvalidArgument,
                    fmt::format("{} does not know which store it came from: say which", path_));
      }
      SYNCLINE_ASSIGN(const auto source, OpenSource(url));
      SYNCLINE_ASSIGN(
          const RepairReport repaired,
          Repair(state, head, damage, *source, options_.seed.empty() ? head.seed : options_.seed,
                 pool_, progress_, options_.cancel));
      report_.tensors_repaired = repaired.tensors;
      SYNCLINE_ASSIGN(damage, FindDamage(state, head, nullptr, pool_, progress_, options_.cancel));
    }
    return Report(head, damage);
  }

  FileSystem& files_;
  const std::string& path_;
  const VerifyOptions& options_;
  base::Progress no_progress_;
  base::Progress& progress_;
  base::ThreadPool pool_;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> Verify(FileSystem& files, const std::string& path,
                            const VerifyOptions& options) {
  Verifier verifier(files, path, options);
  return verifier.Run();
}

}  // namespace syncline::replica
