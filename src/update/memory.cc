// The part of Updates that gives memory back and takes it again.
//
//   release   1. exclusively, if no request needs the engine: it is held from here on;
//             2. every rank releases its weights, after it has written its backup, if there is one;
//                where one fails all resume;
//             3. exclusively: the key-value cache of every rank goes.
//   resume    the same backwards; where a rank fails all release that part again.
//
// Invariant: nothing is computed while anything is released, nor until weights that were released
// without a backup have all been sent again.
#include <fmt/format.h>

#include "layout/known_names.h"
#include "update/updates.h"

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using engine::Engine;
using engine::Hold;

Status Updates::CheckReleasable() const {
  const SessionState now = state();
  if (now.open) {
    return Fail(
        Code::kOutOfOrder,
        "a weight-update session is open; call end_weight_update() before memory is released");
  }
  if (now.pending.empty()) return {};
  return Fail(Code::kOutOfOrder,
              fmt::format("an update waits for the rest of {} modules; send it, or call "
                          "end_weight_update(abort=true), before memory is released: {}",
                          now.pending.size(), layout::FirstNamesText(now.pending)));
}

Status Updates::ReleaseMemory(MemoryParts parts) {
  const MemoryParts released = state().released;
  const bool weights = parts.weights && !released.weights;
  const bool kv_cache = parts.kv_cache && !released.kv_cache;
  if (!weights && !kv_cache) return {};
  SYNCLINE_TRY(CheckReleasable());
  Engine::ExclusiveOptions still = {.flush = true, .idle = true};
  if (!held_) still.hold = Hold::kWait;
  SYNCLINE_TRY(ExclusiveWork(still, [] { return Status(); }));
  held_ = true;
  Status done = weights ? ReleaseWeights() : Status();
  if (done && kv_cache) {
    done = ExclusiveWork({.flush = true, .kv = engine::KvMemory::kRelease, .idle = true},
                         [] { return Status(); });
    if (done) ChangeState([](SessionState& state) { state.released.kv_cache = true; });
  }
  SYNCLINE_TRY(Settle(lost_, {}));
  return done;
}

Status Updates::ReleaseWeights() {
  if (options_.backup_directory.empty()) discarded_ = true;
  Result<std::vector<std::string>> lost = ranks_.Release();
  const Status done = lost ? Status() : std::unexpected(lost.error());
  if (!lost) lost = ranks_.Resume();
  // Where going back fails as well some are released: they can be resumed later.
  const bool released = done || !lost;
  if (lost) lost_ = *std::move(lost);
  ChangeState([&](SessionState& state) { state.released.weights = released; });
  return done;
}

Status Updates::ResumeMemory(MemoryParts parts) {
  const MemoryParts released = state().released;
  Status done = parts.weights && released.weights ? ResumeWeights() : Status();
  if (done && parts.kv_cache && released.kv_cache) {
    done = ExclusiveWork({.kv = engine::KvMemory::kTake}, [] { return Status(); });
    if (done) ChangeState([](SessionState& state) { state.released.kv_cache = false; });
  }
  SYNCLINE_TRY(Settle(lost_, state().pending));
  return done;
}

Status Updates::ResumeWeights() {
  Result<std::vector<std::string>> lost = ranks_.Resume();
  if (!lost) {
    // A rank that has them and cannot release them again has nothing to do the next time.
    static_cast<void>(ranks_.Release());
    return std::unexpected(lost.error());
  }
  if (options_.backup_directory.empty()) discarded_ = true;
  lost_ = *std::move(lost);
  ChangeState([](SessionState& state) { state.released.weights = false; });
  return {};
}

}  // namespace syncline::update
