// Everything on rank 0 that changes weights: sessions, tensors, checkpoints, the version's label.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "engine/engine.h"
#include "update/all_ranks.h"
#include "update/others.h"
#include "update/rank_weights.h"
#include "update/weights.h"

namespace syncline::update {

// One thread, the update thread, which waits for the engine's; but state(), model_path() and
// SetVersion are for any thread.
class Updates {
 public:
  // All must outlive it.
  Updates(engine::Engine& engine, RankWeights& own, RankGroups& groups, RankProducer& producer,
          const Others& others, const Weights::Options& options);

  base::Result<UpdateReport> FromDisk(const DiskUpdate& update);
  base::Result<UpdateReport> FromTensors(const TensorUpdate& update);
  // The same with endpoints; the producers are told what came of it, also where it is refused.
  base::Result<UpdateReport> FromProducers(const TensorUpdate& update);
  base::Result<std::vector<WindowInfo>> Offer();
  base::Status Begin(const BeginRequest& request);
  base::Result<UpdateReport> End(const EndRequest& request);
  base::Status ReleaseMemory(MemoryParts parts);
  base::Status ResumeMemory(MemoryParts parts);
  // Something that was to come did not: a session that is open has failed.
  void Failed(const base::Error& error);
  // Refuses to generate until an update has gone well.
  base::Status AwaitWeights();
  // Undoes a session of which nothing was heard for that long.
  void Expire(std::chrono::milliseconds silence);

  base::Status SetVersion(const std::string& label);
  SessionState state() const;
  std::string model_path() const;

 private:
  using Clock = std::chrono::steady_clock;

  base::Status Undo();
  base::Status OpenForWrites();
  base::Status Quiesce(bool hold);
  base::Status Commit(const engine::Engine::ExclusiveOptions& options, bool derive_only,
                      const std::optional<std::string>& path);
  base::Status Settle(std::vector<std::string> lost, const std::vector<std::string>& pending);
  base::Status ExclusiveWork(const engine::Engine::ExclusiveOptions& options,
                             const std::function<base::Status()>& work);
  std::optional<std::string> WhyIncomplete() const;
  engine::Hold HoldNow() const;
  base::Status CheckReleasable() const;
  base::Status ReleaseWeights();
  base::Status ResumeWeights();
  base::Status CheckMemory() const;
  base::Status CheckFlush(bool flush) const;
  base::Status CheckPayloads(const TensorUpdate& update) const;
  base::Result<Selector> CheckSession(const TensorUpdate& update) const;
  base::Result<Selector> Check(const TensorUpdate& update) const;
  base::Result<UpdateReport> ApplyOne(const TensorUpdate& update, Selector selector);
  base::Result<UpdateReport> CommitSession(UpdateReport report);
  void Close();
  void Touch() { heard_ = Clock::now(); }
  template <typename Change>
  void ChangeState(const Change& change) {
    const std::scoped_lock lock(mutex_);
    change(state_);
  }

  engine::Engine& engine_;
  AllRanks ranks_;
  const Weights::Options& options_;
  bool offered_ = false;   // to trainers that write straight into the parameters
  bool held_ = false;      // by us
  bool sync_base_ = true;  // of the open session
  bool flush_ = false;     // something in the session asked for it
  std::vector<std::string> lost_;
  bool discarded_ = false;  // lost_ began with a release of the weights
  Clock::time_point heard_ = Clock::now();
  mutable std::mutex mutex_;
  SessionState state_;      // guarded by mutex_
  std::string model_path_;  // guarded by mutex_
};

}  // namespace syncline::update
