// 1. Open `base`, so that a wrong path is known before anything is made.
// 2. Open the publisher with an empty baseline: from here on the store's publisher lock is held,
//    and no version can come between.
// 3. Bring the last version together (from its directory, from `base`, or by a pull) and copy its
//    tensors into the baseline. Whoever holds the lock may remove `.syncline/resume`; so what a
//    killed process left there goes with the next one.
#include "replica/resume.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/replica.h"
#include "store/version.h"

namespace syncline::replica {
namespace {

using base::FileSystem;
using base::Result;
using base::Status;
using checkpoint::MappedCheckpoint;

Status Load(const MappedCheckpoint& mapped, std::uint64_t version, const ResumeOptions& options,
            store::Baseline& baseline) {
  base::ThreadPool pool(options.publisher.threads);
  SYNCLINE_TRY(baseline.Advance(version, mapped.Views(), {}, pool));
  return options.cancel != nullptr ? options.cancel->Check() : Status();
}

Status LoadVersion(FileSystem& files, const std::string& store, std::uint64_t version,
                   const std::string& scratch, const ResumeOptions& options,
                   store::Baseline& baseline) {
  SYNCLINE_ASSIGN(const store::Version last, store::ReadVersion(files, store, version));
  if (last.delta) {
    const PullOptions pull = {.version = version,
                              .seed = options.base,
                              .threads = options.publisher.threads,
                              .progress = options.progress,
                              .cancel = options.cancel};
    SYNCLINE_TRY(Pull(files, store, scratch, pull));
  }
  SYNCLINE_ASSIGN(const auto mapped,
                  MappedCheckpoint::Open(files, last.delta ? scratch : last.directory));
  return Load(mapped, version, options, baseline);
}

}  // namespace

Result<store::Publisher> ResumePublisher(FileSystem& files, const std::string& store,
                                         const ResumeOptions& options) {
  std::optional<MappedCheckpoint> zero;
  if (!options.base.empty()) {
    SYNCLINE_ASSIGN(zero, MappedCheckpoint::Open(files, options.base));
  }
  std::unique_ptr<store::Baseline> made = store::MakeMemoryBaseline();
  store::Baseline& baseline = *made;
  SYNCLINE_ASSIGN(
      store::Publisher publisher,
      store::Publisher::Open(files, store, std::move(made), zero.has_value(), options.publisher));
  SYNCLINE_ASSIGN(const std::vector<std::uint64_t> versions, store::ListVersions(files, store));
  if (versions.empty()) {
    if (zero) SYNCLINE_TRY(Load(*zero, 0, options, baseline));
    return publisher;
  }

  const std::string scratch = base::JoinPath(store::OwnDirectory(store), "resume");
  SYNCLINE_TRY(files.RemoveAll(scratch));
  Status loaded = LoadVersion(files, store, versions.back(), scratch, options, baseline);
  const Status removed = files.RemoveAll(scratch);
  if (!loaded) {
    const bool need_base = options.base.empty() && loaded.error().code == base::Code::kNotFound;
    return Annotate(std::move(loaded).error(),
                    fmt::format("cannot go on from version {} of {}{}", versions.back(), store,
                                need_base ? " without the base" : ""));
  }
  SYNCLINE_TRY(removed);
  return publisher;
}

}  // namespace syncline::replica
