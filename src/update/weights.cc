// Protocol of an update from disk; each step is on the update thread but for 5.
//
//   1. If the path is a replica: take its lock shared, and read its marker. No marker: it is not
//      whole, refuse.
//   2. Compare config.json with the served model's.
//   3. Read and check every tensor into the staging arena. Generation may go on: nothing that is
//      served is touched.
//   4. Read the marker again: a program that does not know the lock may have changed the files
//      meanwhile.
//   5. Engine::Exclusive: exchange the two arenas, on the engine's thread; label and path follow in
//      the same instant.
// Invariant: the live bytes change only in 5, which cannot fail. Afterwards the staging arena holds
// the bytes that were live.
#include "update/weights.h"

#include <fmt/core.h>

#include <chrono>
#include <future>
#include <mutex>

#include "base/cancel.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "base/worker.h"
#include "checkpoint/checkpoint.h"
#include "layout/load.h"
#include "model/model.h"
#include "replica/replica.h"
#include "replica/state.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A replica that is read: locked against pulls, at a version that its marker names. Of any other
// directory: nothing.
class ReplicaReading {
 public:
  static Result<ReplicaReading> Begin(base::FileSystem& files, const std::string& path,
                                      const base::CancelToken& cancel) {
    ReplicaReading reading(files, path);
    SYNCLINE_ASSIGN(reading.is_replica_, reading.state_.IsReplica());
    if (!reading.is_replica_) return reading;
    SYNCLINE_ASSIGN(reading.lock_, reading.state_.Lock(base::LockMode::kShared, &cancel));
    SYNCLINE_ASSIGN(reading.marker_, reading.state_.ReadMarker());
    if (!reading.marker_) {
      return Fail(Code::kOutOfOrder,
                  fmt::format("{}: this replica holds no whole version (its marker is missing); "
                              "pull it again",
                              path));
    }
    return reading;
  }

  // kOutOfOrder if the replica has changed since Begin.
  Status End() const {
    if (!is_replica_) return {};
    SYNCLINE_ASSIGN(const std::optional<replica::Marker> marker, state_.ReadMarker());
    if (marker == marker_) return {};
    return Fail(Code::kOutOfOrder,
                fmt::format("{}: the replica was at version {} and changed while it was read",
                            state_.directory(), marker_->version));
  }

 private:
  ReplicaReading(base::FileSystem& files, const std::string& path) : state_(files, path) {}

  replica::ReplicaState state_;
  bool is_replica_ = false;
  std::unique_ptr<base::FileLock> lock_;
  std::optional<replica::Marker> marker_;
};

class LiveWeights : public Weights {
 public:
  LiveWeights(base::FileSystem& files, engine::Engine& engine, model::Model& model,
              std::string launch_path)
      : files_(files),
        engine_(engine),
        model_(model),
        launch_path_(std::move(launch_path)),
        model_path_(launch_path_) {}

  ~LiveWeights() override { cancel_.Cancel(); }

  void FromDisk(DiskUpdate update, Updated done) override {
    updates_.Post([this, update = std::move(update), done = std::move(done)] {
      done(UpdateFromDisk(update));
    });
  }

  void Pull(PullRequest request, std::function<void(Status)> done) override {
    pulls_.Post([this, request = std::move(request), done = std::move(done)] {
      const auto report =
          replica::Pull(files_, request.source, request.replica,
                        {.version = request.version, .seed = launch_path_, .cancel = &cancel_});
      done(report ? Status() : std::unexpected(report.error()));
    });
  }

  void Export(std::string name, std::function<void(Result<ExportedTensor>)> done) override;
  std::vector<std::string> names() const override;

  std::string model_path() const override {
    const std::scoped_lock lock(mutex_);
    return model_path_;
  }

 private:
  // On the update thread.
  Result<UpdateReport> UpdateFromDisk(const DiskUpdate& update);
  Result<layout::LoadReport> Stage(const std::string& path);
  Status CompareConfiguration(const std::string& path) const;
  Status Apply(const DiskUpdate& update, UpdateReport& report);

  base::FileSystem& files_;
  engine::Engine& engine_;
  model::Model& model_;
  const std::string launch_path_;
  base::CancelToken cancel_;
  base::ThreadPool pool_;  // of the update thread, and of the engine's while it runs an update
  mutable std::mutex mutex_;
  std::string model_path_;  // guarded by mutex_
  // Last, so that they end first.
  base::Worker updates_;
  base::Worker pulls_;
};

Result<UpdateReport> LiveWeights::UpdateFromDisk(const DiskUpdate& update) {
  try {
    SYNCLINE_TRY(cancel_.Check());
    UpdateReport report;
    const Clock::time_point begin = Clock::now();
    SYNCLINE_ASSIGN(const layout::LoadReport loaded, Stage(update.path));
    report.tensors = loaded.tensors;
    report.bytes = loaded.bytes;
    report.stage_seconds = SecondsSince(begin);
    SYNCLINE_TRY(Apply(update, report));
    return report;
  } catch (const std::bad_alloc&) {
    return Fail(Code::kLimitExceeded, fmt::format("{}: out of memory", update.path));
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, fmt::format("{}: {}", update.path, error.what()));
  }
}

Status LiveWeights::CompareConfiguration(const std::string& path) const {
  SYNCLINE_ASSIGN(const bool exists, base::Exists(files_, base::JoinPath(path, "config.json")));
  if (!exists) return {};  // weights only: the tensors' names and shapes say whether they fit
  SYNCLINE_ASSIGN(model::ModelConfig config, model::ReadModelConfig(files_, path));
  config.end_tokens = model_.config().end_tokens;
  config.model_type = model_.config().model_type;
  if (config == model_.config()) return {};
  return Fail(
      Code::kIncompatible,
      fmt::format("{}/config.json describes another model than the one that is served", path));
}

Result<layout::LoadReport> LiveWeights::Stage(const std::string& path) {
  SYNCLINE_ASSIGN(const ReplicaReading reading, ReplicaReading::Begin(files_, path, cancel_));
  SYNCLINE_TRY(CompareConfiguration(path));
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files_, path));
  SYNCLINE_ASSIGN(const auto staging, model_.parameters().Staging());
  SYNCLINE_ASSIGN(
      const layout::LoadReport loaded,
      layout::LoadCheckpoint(files_, checkpoint, model_.plan(), staging, pool_, &cancel_));
  SYNCLINE_TRY(reading.End());
  return loaded;
}

Status LiveWeights::Apply(const DiskUpdate& update, UpdateReport& report) {
  std::promise<Status> applied;
  engine_.Exclusive(
      {.flush = update.flush_cache, .label = update.weight_version},
      [&]() -> Status {
        const Clock::time_point begin = Clock::now();
        model_.parameters().Exchange(pool_);
        const std::scoped_lock lock(mutex_);
        model_path_ = update.path;
        report.apply_seconds = SecondsSince(begin);
        return {};
      },
      [&](Status status) { applied.set_value(std::move(status)); });
  return applied.get_future().get();
}

void LiveWeights::Export(std::string name, std::function<void(Result<ExportedTensor>)> done) {
  const layout::Plan& plan = model_.plan();
  std::size_t tensor = plan.FindTensor(name);
  if (tensor == layout::Plan::npos) tensor = plan.FindAlias(name);
  if (tensor == layout::Plan::npos) {
    return done(Fail(Code::kNotFound, fmt::format("the model has no tensor \"{}\"", name)));
  }
  const bool queued = engine_.BetweenSteps([this, tensor, name = std::move(name), done] {
    const layout::TensorSpec& spec = model_.plan().tensors()[tensor];
    ExportedTensor exported = {name, spec.dtype, spec.shape, {}};
    exported.bytes.resize(spec.bytes());
    const auto live = model_.parameters().live();
    const std::vector<base::ByteSpan> views(live.begin(), live.end());
    model_.plan().Gather(tensor, views, exported.bytes);
    done(std::move(exported));
  });
  if (!queued) done(Fail(Code::kUnavailable, "the engine is shutting down"));
}

std::vector<std::string> LiveWeights::names() const {
  std::vector<std::string> names;
  for (const layout::TensorSpec& tensor : model_.plan().tensors()) names.push_back(tensor.name);
  return names;
}

}  // namespace

std::unique_ptr<Weights> Weights::Create(base::FileSystem& files, engine::Engine& engine,
                                         model::Model& model, std::string launch_path) {
  return std::make_unique<LiveWeights>(files, engine, model, std::move(launch_path));
}

}  // namespace syncline::update
