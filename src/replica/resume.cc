// 1. Open `base` and the key, so that a wrong path is known before anything is made.
// 2. Open the publisher with an empty baseline: from here on a directory's publisher lock is held,
//    and no version can come between.
// 3. Bring the last version together (from its directory, from `base`, or by a pull) and load it
//    into the baseline. Whoever holds the lock may remove the folder `resume`; so what a killed
//    process left there goes with the next one.
#include "replica/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/replica.h"
#include "replica/replica_baseline.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::MappedCheckpoint;

class Resumer {
 public:
  Resumer(FileSystem& files, const std::string& store, const ResumeOptions& options)
      : files_(files), store_(store), options_(options) {}

  Result<store::Publisher> Run() {
    std::optional<MappedCheckpoint> zero;
    if (!options_.base.empty()) {
      SYNCLINE_ASSIGN(zero, MappedCheckpoint::Open(files_, options_.base));
    }
    if (!options_.publisher.signing_key.empty()) {
      SYNCLINE_TRY(store::SigningKey::Read(files_, options_.publisher.signing_key));
    }
    SYNCLINE_ASSIGN(auto sink, store::OpenSink(files_, store_,
                                               {.durable = options_.publisher.durable,
                                                .exclusive = options_.publisher.ranks.rank == 0,
                                                .work_directory = options_.publisher.work_directory,
                                                .objects = options_.publisher.objects}));
    scratch_ = sink->OwnPath("resume");
    local_store_ = sink->local_path();
    const store::RankOptions& ranks = options_.publisher.ranks;
    const bool several = ranks.world != 1 || ranks.rank != 0;
    if (several && options_.baseline == BaselineKind::kDisk) {
      return base::Fail(base::Code::kInvalidArgument,
                        "several ranks keep their baselines in memory, or none");
    }
    std::unique_ptr<store::Baseline> baseline = MakeBaseline(*sink);
    store::Baseline& made = *baseline;
    SYNCLINE_ASSIGN(
        store::Publisher publisher,
        store::Publisher::Open(files_, std::move(sink), std::move(baseline), zero.has_value(),
                               several ? RankPublisher() : options_.publisher));
    if (several) return publisher;
    const std::optional<std::uint64_t> last = publisher.last_version();
    if (!last || options_.baseline == BaselineKind::kNone) return publisher;
    // Version 0 may be the base and in the store: then the store's own counts.
    const bool in_store = publisher.holds_versions();
    Status loaded = in_store ? Load(*last, made) : LoadZero(*zero, made);
    if (!loaded) {
      const bool need_base = options_.base.empty() && loaded.error().code == base::Code::kNotFound;
      return Annotate(std::move(loaded).error(),
                      fmt::format("cannot go on from version {} of {}{}", *last, store_,
                                  need_base ? " without the base" : ""));
    }
    return publisher;
  }

 private:
  // A rank does not know its tensors before it publishes.
  store::PublisherOptions RankPublisher() const {
    store::PublisherOptions options = options_.publisher;
    if (options_.baseline == BaselineKind::kNone) return options;
    const std::string scratch = fmt::format("{}-{}", scratch_, options.ranks.rank);
    options.load_baseline = [&files = files_, store = store_, local = local_store_,
                             base = options_.base, threads = options.threads,
                             scratch](std::uint64_t version, std::span<const std::string> names,
                                      store::Baseline& baseline,
                                      const base::CancelToken* cancel) -> Status {
      ResumeOptions resume;
      resume.base = base;
      resume.publisher.threads = threads;
      resume.cancel = cancel;
      Resumer resumer(files, store, resume);
      resumer.scratch_ = scratch;
      resumer.local_store_ = local;
      resumer.names_ = names;
      SYNCLINE_ASSIGN(const bool in_store,
                      base::Exists(files, base::JoinPath(local, store::VersionName(version))));
      if (in_store || base.empty() || version != 0) return resumer.Load(version, baseline);
      SYNCLINE_ASSIGN(const auto zero, MappedCheckpoint::Open(files, base));
      return resumer.Copy(zero, 0, baseline);
    };
    return options;
  }

  std::unique_ptr<store::Baseline> MakeBaseline(const store::Sink& sink) {
    switch (options_.baseline) {
      case BaselineKind::kMemory:
        return store::MakeMemoryBaseline();
      case BaselineKind::kNone:
        return store::MakeNoBaseline();
      case BaselineKind::kDisk:
        break;
    }
    std::string directory = options_.baseline_directory;
    if (directory.empty()) directory = sink.OwnPath("baseline");
    auto made = std::make_unique<ReplicaBaseline>(
        files_, store_, std::move(directory), options_.base, !options_.one_version,
        options_.publisher.threads, options_.publisher.objects);
    disk_ = made.get();
    return made;
  }

  Status LoadZero(const MappedCheckpoint& zero, store::Baseline& baseline) {
    return disk_ != nullptr ? disk_->LoadSeed() : Copy(zero, 0, baseline);
  }

  Status Load(std::uint64_t version, store::Baseline& baseline) {
    if (disk_ != nullptr) return disk_->Load(version, options_.progress, options_.cancel);
    SYNCLINE_TRY(files_.RemoveAll(scratch_));
    Status loaded = LoadCopy(version, baseline);
    const Status removed = files_.RemoveAll(scratch_);
    if (!loaded) return loaded;
    return removed;
  }

  Status LoadCopy(std::uint64_t version, store::Baseline& baseline) {
    std::string path = scratch_;
    if (!local_store_.empty()) {
      SYNCLINE_ASSIGN(const store::Version last, store::ReadVersion(files_, local_store_, version));
      if (!last.delta) path = last.directory;
    }
    if (path == scratch_) {
      const PullOptions pull = {.version = version,
                                .seed = options_.base,
                                .threads = options_.publisher.threads,
                                .progress = options_.progress,
                                .cancel = options_.cancel,
                                .source = {.connection = options_.publisher.objects}};
      SYNCLINE_TRY(Pull(files_, store_, scratch_, pull));
    }
    SYNCLINE_ASSIGN(const auto mapped, MappedCheckpoint::Open(files_, path));
    return Copy(mapped, version, baseline);
  }

  Status Copy(const MappedCheckpoint& mapped, std::uint64_t version, store::Baseline& baseline) {
    base::ThreadPool pool(options_.publisher.threads);
    std::vector<tensor::TensorView> views = mapped.Views();
    if (names_) {
      std::erase_if(views, [&](const tensor::TensorView& view) {
        return !std::ranges::binary_search(*names_, view.name);
      });
    }
    SYNCLINE_TRY(baseline.Advance(version, views, {}, pool));
    return options_.cancel != nullptr ? options_.cancel->Check() : Status();
  }

  FileSystem& files_;
  const std::string& store_;
  const ResumeOptions& options_;
  std::string scratch_;
  std::string local_store_;
  ReplicaBaseline* disk_ = nullptr;
  std::optional<std::span<const std::string>> names_;  // sorted; of a rank: what to load
};

}  // namespace

Result<store::Publisher> ResumePublisher(FileSystem& files, const std::string& store,
                                         const ResumeOptions& options) {
  return Resumer(files, store, options).Run();
}

}  // namespace syncline::replica
