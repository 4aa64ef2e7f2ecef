// Protocol of a session:
//
//   begin     every rank drops what it holds ready; the engine has come by once, so no forward is
//             running that began before. If updates may write in place, the engine is held from here
//             on (exclusively: running requests finish first, unless generation is paused).
//   message   every rank takes it. If one fails, the session has failed: the end undoes it.
//   end       1. every rank makes ready what came; one that cannot fails the session;
//             2. exclusively: "commit" in the order of commands, commit here, wait for all; label
//                and path follow in the same instant;
//             3. the engine goes on.
// An update outside a session is the same for one message; a checkpoint is one message too. So is
// all that the producers of checkpoint-engine send, one to each rank; the end of each is answered
// when the update is live everywhere or has failed (in a session: when every rank has it). Where
// the parameters are offered to trainers that write straight into them, the memory of the update is
// open for them from begin to end (window.h), with the live weights in it.
//
// Invariants: between two steps all ranks hold the live bytes of the same version, because a step
// and a commit are in one order on all of them. What failed before 2 has changed nothing that is
// live, but what was written in place: then the engine refuses to generate until that has been
// written anew. So it does with weights that were released (memory.cc).
#include "update/updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>

#include "base/log.h"
#include "base/wait_for.h"
#include "layout/known_names.h"

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using engine::Engine;
using engine::Hold;

namespace {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

UpdateReport ReportOf(const Staged& staged) {
  return {.tensors = staged.tensors,
          .skipped = staged.skipped,
          .bytes = staged.bytes,
          .unchanged = staged.loaded && staged.unchanged,
          .undoable = !staged.in_place,
          .pending = staged.pending};
}

}  // namespace

Updates::Updates(Engine& engine, RankWeights& own, RankGroups& groups, RankProducer& producer,
                 const Others& others, const Weights::Options& options)
    : engine_(engine),
      ranks_(own, groups, producer, others, options.host),
      options_(options),
      model_path_(options.launch_path) {}

SessionState Updates::state() const {
  const std::scoped_lock lock(mutex_);
  return state_;
}

std::string Updates::model_path() const {
  const std::scoped_lock lock(mutex_);
  return model_path_;
}

Status Updates::SetVersion(const std::string& label) {
  {
    const std::scoped_lock lock(mutex_);
    if (state_.open) {
      state_.weight_version = label;
      return {};
    }
  }
  return base::WaitFor<Status>(
      [&](Engine::Done done) { engine_.SetVersion(label, std::move(done)); });
}

// ---- the engine ----

Status Updates::ExclusiveWork(const Engine::ExclusiveOptions& options,
                              const std::function<Status()>& work) {
  return base::WaitFor<Status>(
      [&](Engine::Done done) { engine_.Exclusive(options, work, std::move(done)); });
}

// No forward that has begun before is running when it returns; with `hold`, none can begin.
Status Updates::Quiesce(bool hold) {
  if (hold) {
    if (held_) return {};
    SYNCLINE_TRY(ExclusiveWork({.hold = Hold::kWait}, [] { return Status(); }));
    held_ = true;
    return {};
  }
  auto promise = std::make_shared<std::promise<void>>();
  if (!engine_.BetweenSteps([promise] { promise->set_value(); })) {
    return Fail(Code::kUnavailable, "the engine is shutting down");
  }
  promise->get_future().wait();
  return {};
}

// Forgets what came on all ranks, and says to the engine where that leaves it.
Status Updates::Undo() {
  SYNCLINE_ASSIGN(std::vector<std::string> lost, ranks_.Drop());
  return Settle(std::move(lost), {});
}

std::optional<std::string> Updates::WhyIncomplete() const {
  if (lost_.empty()) return std::nullopt;
  const std::string names = layout::FirstNamesText(lost_);
  if (!discarded_) {
    return fmt::format(
        "incomplete update: {} tensors lie in what an update that failed has written, and must be "
        "written anew: {}",
        lost_.size(), names);
  }
  return fmt::format(
      "incomplete update: the weights were released{}, and {} tensors must be sent again: {}",
      state().released.weights ? " and not resumed yet" : "", lost_.size(), names);
}

Hold Updates::HoldNow() const {
  const SessionState now = state();
  // Who released the weights is about to send new ones; those who wait for them may.
  if (now.incomplete) return discarded_ ? Hold::kShut : Hold::kRefuse;
  if (now.awaiting) return Hold::kRefuse;
  const bool released = now.released.kv_cache || now.released.weights;
  if (!now.pending.empty() || released) return Hold::kWait;
  // A session that may write in place keeps the engine held until its end.
  const bool writes = now.open && sync_base_ && ranks_.known_to_write_in_place();
  return held_ && writes ? Hold::kWait : Hold::kNone;
}

// Lets the engine go on, unless something is lost, released or waits, or a session is writing in
// place.
Status Updates::Settle(std::vector<std::string> lost, const std::vector<std::string>& pending) {
  // Ranks lose the same parameters, each its part.
  std::ranges::sort(lost);
  const auto twice = std::ranges::unique(lost);
  lost.erase(twice.begin(), twice.end());
  lost_ = std::move(lost);
  discarded_ = discarded_ && !lost_.empty();
  const std::optional<std::string> incomplete = WhyIncomplete();
  ChangeState([&](SessionState& state) {
    state.incomplete = incomplete;
    state.pending = pending;
  });
  const bool awaiting = state().awaiting;
  const Hold hold = HoldNow();
  if (hold == Hold::kNone && !held_) return {};
  held_ = hold != Hold::kNone;
  const std::string reason = incomplete.value_or(
      awaiting ? "the engine waits for its first weights, as it was started to do" : "");
  return base::WaitFor<Status>(
      [&](Engine::Done done) { engine_.SetHold(hold, reason, std::move(done)); });
}

Status Updates::AwaitWeights() {
  ChangeState([](SessionState& state) { state.awaiting = true; });
  return Settle({}, {});
}

// `derive_only`: nothing came; who wrote past us relies on it.
Status Updates::Commit(const Engine::ExclusiveOptions& options, bool derive_only,
                       const std::optional<std::string>& path) {
  SYNCLINE_TRY(ExclusiveWork(options, [&]() -> Status {
    if (derive_only) return ranks_.DeriveLive();
    SYNCLINE_ASSIGN(lost_, ranks_.Commit());
    if (path) {
      const std::scoped_lock lock(mutex_);
      model_path_ = *path;
    }
    return {};
  }));
  ChangeState([](SessionState& state) { state.awaiting = false; });
  return {};
}

// Said before anything is done; the engine looks again when it counts.
Status Updates::CheckFlush(bool flush) const {
  const engine::Stats stats = engine_.stats();
  // One that is held after a pause may still hold what was paused in place.
  const bool still = stats.paused || stats.hold != Hold::kNone;
  if (!flush || !still || stats.running == 0) return {};
  return engine::FlushRefused(stats.running);
}

Status Updates::CheckMemory() const {
  if (!state().released.weights) return {};
  return Fail(Code::kOutOfOrder, kWeightsReleased);
}

// ---- checkpoints ----

Result<UpdateReport> Updates::FromDisk(const DiskUpdate& update) {
  Touch();
  SYNCLINE_TRY(CheckMemory());
  SYNCLINE_TRY(CheckFlush(update.flush_cache));
  SYNCLINE_ASSIGN(const bool in_place, ranks_.MayWriteInPlace());
  const Clock::time_point begin = Clock::now();
  if (in_place) SYNCLINE_TRY(Quiesce(/*hold=*/true));
  const SessionState before = state();
  const auto undo = [&](const base::Error& error) -> Result<UpdateReport> {
    if ((before.loaded || before.open_for_writes) && !before.failure) {
      ChangeState([&](SessionState& state) {
        state.failure =
            "what had come was dropped for an update from disk, which failed: " + error.message;
      });
    }
    SYNCLINE_TRY(Undo());
    return std::unexpected(error);
  };
  const Result<Staged> staged = ranks_.Stage(update.path);
  if (!staged) return undo(staged.error());
  UpdateReport report = ReportOf(*staged);
  if (report.unchanged) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: an update with exactly the weights that are live", update.path));
  }
  report.stage_seconds = SecondsSince(begin);
  const Clock::time_point commit = Clock::now();
  const Status done = Commit({.flush = update.flush_cache, .label = update.weight_version},
                             /*derive_only=*/false, update.path);
  if (!done) return undo(done.error());
  // It has replaced everything, also what came in a session that is open, which goes on empty.
  flush_ = false;
  ChangeState([&](SessionState& state) {
    state.loaded = false;
    state.failure.reset();
    if (state.weight_version == before.weight_version) state.weight_version.reset();
  });
  report.apply_seconds = SecondsSince(commit);
  SYNCLINE_TRY(Settle(lost_, {}));
  if (before.open_for_writes) {
    if (const Status opened = OpenForWrites(); !opened) {
      ChangeState([&](SessionState& state) { state.failure = opened.error().message; });
    }
  }
  return report;
}

// ---- sessions ----

Result<std::vector<WindowInfo>> Updates::Offer() {
  SYNCLINE_ASSIGN(std::vector<WindowInfo> windows, ranks_.Offer());
  offered_ = true;
  return windows;
}

// Of the session that is open, where its target is offered.
Status Updates::OpenForWrites() {
  const bool open = offered_ && sync_base_ && Selects(state().selector, /*role=*/"");
  if (open) SYNCLINE_TRY(ranks_.Open());
  ChangeState([&](SessionState& state) { state.open_for_writes = open; });
  return {};
}

Status Updates::Begin(const BeginRequest& request) {
  Touch();
  if (options_.sessions == SessionRule::kIgnored) return {};
  SYNCLINE_TRY(CheckMemory());
  const SessionState now = state();
  if (now.open && (now.selector != request.selector || sync_base_ != request.sync_base)) {
    return Fail(Code::kOutOfOrder,
                "a weight-update session is already open; call end_weight_update() first");
  }
  SYNCLINE_TRY(Undo());
  SYNCLINE_ASSIGN(const bool in_place, ranks_.MayWriteInPlace());
  SYNCLINE_TRY(Quiesce(in_place && request.sync_base));
  sync_base_ = request.sync_base;
  flush_ = false;
  ChangeState([&](SessionState& state) {
    state.open = true;
    state.selector = request.selector;
    state.loaded = false;
    state.weight_version.reset();
    state.failure.reset();
  });
  const Status opened = OpenForWrites();
  if (opened) return {};
  Close();
  SYNCLINE_TRY(Undo());
  return opened;
}

void Updates::Close() {
  ChangeState([](SessionState& state) {
    state.open = false;
    state.loaded = false;
    state.open_for_writes = false;
    state.weight_version.reset();
    state.failure.reset();
  });
}

Result<UpdateReport> Updates::End(const EndRequest& request) {
  Touch();
  if (options_.sessions == SessionRule::kIgnored) return UpdateReport();
  const SessionState now = state();
  if (!now.open) {
    if (request.abort && !now.pending.empty()) {
      SYNCLINE_TRY(Undo());
      return UpdateReport();
    }
    return Fail(Code::kOutOfOrder,
                "no weight-update session is open; call begin_weight_update() first");
  }
  if (request.abort || now.failure) {
    Close();
    SYNCLINE_TRY(Undo());
    if (request.abort) return UpdateReport();
    return Fail(Code::kOutOfOrder,
                fmt::format("the session was undone, for an update in it failed: "
                            "{}",
                            *now.failure));
  }
  const Clock::time_point begin = Clock::now();
  const Result<Staged> staged =
      sync_base_ ? ranks_.Prepare(now.selector, /*whole=*/true) : Result<Staged>(Staged());
  if (!staged) {
    Close();
    SYNCLINE_TRY(Undo());
    return base::Annotate(staged.error(), "the session was undone");
  }
  UpdateReport report = ReportOf(*staged);
  report.stage_seconds = SecondsSince(begin);
  return CommitSession(std::move(report));
}

Result<UpdateReport> Updates::CommitSession(UpdateReport report) {
  // Read now: it may have been set while the ranks made ready what came.
  const SessionState now = state();
  const Clock::time_point begin = Clock::now();
  const Status done = Commit({.flush = flush_, .label = now.weight_version},
                             /*derive_only=*/!now.loaded && !now.open_for_writes, std::nullopt);
  Close();
  if (!done) {
    SYNCLINE_TRY(Undo());
    return base::Annotate(done.error(), "the session was undone");
  }
  report.apply_seconds = SecondsSince(begin);
  SYNCLINE_TRY(Settle(lost_, {}));
  return report;
}

void Updates::Failed(const base::Error& error) {
  Touch();
  ChangeState([&](SessionState& state) {
    if (state.open && !state.failure) state.failure = error.message;
  });
}

void Updates::Expire(std::chrono::milliseconds silence) {
  if (!state().open || Clock::now() - heard_ < silence) return;
  base::Log(base::LogLevel::kWarning,
            fmt::format("a weight-update session of which nothing was heard for {} s is undone",
                        std::chrono::duration<double>(silence).count()));
  Close();
  if (const Status dropped = Undo(); !dropped) {
    base::Log(base::LogLevel::kError, dropped.error().message);
  }
}

// ---- tensors ----

Status Updates::CheckPayloads(const TensorUpdate& update) const {
  const std::size_t count = update.payloads.size();
  if (update.ticket != 0 || !update.endpoints.empty() || count == ranks_.size()) return {};
  if (count == 1 && update.format == payload::Format::kSafetensors) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("serialized_named_tensors has {} elements, expected one for each of the "
                          "engine's {} ranks",
                          count, ranks_.size()));
}

// The selector of an update: that of the session, if it names none.
Result<Selector> Updates::CheckSession(const TensorUpdate& update) const {
  SYNCLINE_TRY(CheckMemory());
  const SessionState now = state();
  if (!now.open) {
    if (options_.sessions != SessionRule::kRequired || !update.endpoints.empty())
      return update.selector.value_or(Selector::kAll);
    return Fail(Code::kOutOfOrder,
                update.route + " must run between begin_weight_update() and end_weight_update()");
  }
  if (now.failure) {
    return Fail(Code::kOutOfOrder,
                fmt::format("the session has failed, and end_weight_update() will undo it: {}",
                            *now.failure));
  }
  if (!sync_base_) {
    return Fail(Code::kOutOfOrder,
                "base tensors arrived in a sync_base=False weight-update session");
  }
  const Selector selector = update.selector.value_or(now.selector);
  if (Covers(now.selector, selector)) return selector;
  return Fail(Code::kInvalidArgument,
              fmt::format("selector={} of the update is not part of the session's selector={}",
                          Name(selector), Name(now.selector)));
}

Result<Selector> Updates::Check(const TensorUpdate& update) const {
  SYNCLINE_ASSIGN(const Selector selector, CheckSession(update));
  SYNCLINE_TRY(CheckPayloads(update));
  SYNCLINE_TRY(CheckFlush(update.flush_cache));
  return selector;
}

Result<UpdateReport> Updates::FromProducers(const TensorUpdate& update) {
  if (update.endpoints.size() != ranks_.size()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} endpoints for {} ranks", update.endpoints.size(), ranks_.size()));
  }
  // A producer waits for an engine until one comes.
  if (const Result<Selector> checked = Check(update); !checked) {
    static_cast<void>(
        ranks_.ReceiveFromProducers(update.endpoints, Selector::kAll, checked.error().message));
    ranks_.FinishProducers(checked.error().message);
    return std::unexpected(checked.error());
  }
  Result<UpdateReport> report = FromTensors(update);
  ranks_.FinishProducers(report ? "" : report.error().message);
  return report;
}

Result<UpdateReport> Updates::FromTensors(const TensorUpdate& update) {
  Touch();
  SYNCLINE_ASSIGN(const Selector selector, Check(update));
  if (!state().open) return ApplyOne(update, selector);
  const Clock::time_point begin = Clock::now();
  const Result<Staged> staged = ranks_.Receive(update, selector);
  Touch();
  if (!staged) {
    ChangeState([&](SessionState& state) { state.failure = staged.error().message; });
    return std::unexpected(staged.error());
  }
  flush_ = flush_ || update.flush_cache;
  ChangeState([&](SessionState& state) {
    state.loaded = state.loaded || staged->tensors > 0;
    if (update.weight_version) state.weight_version = update.weight_version;
  });
  UpdateReport report = ReportOf(*staged);
  report.stage_seconds = SecondsSince(begin);
  return report;
}

// Without a session.
Result<UpdateReport> Updates::ApplyOne(const TensorUpdate& update, Selector selector) {
  const Clock::time_point begin = Clock::now();
  SYNCLINE_ASSIGN(const bool in_place, ranks_.MayWriteInPlace());
  if (in_place) SYNCLINE_TRY(Quiesce(/*hold=*/true));
  const auto undo = [&](const base::Error& error) -> Result<UpdateReport> {
    SYNCLINE_TRY(Undo());
    return std::unexpected(error);
  };
  const Result<Staged> received = ranks_.Receive(update, selector);
  if (!received) return undo(received.error());
  const Result<Staged> prepared = ranks_.Prepare(selector, /*whole=*/false);
  if (!prepared) return undo(prepared.error());
  UpdateReport report = ReportOf(*received);
  report.unchanged = prepared->loaded && prepared->unchanged;
  report.undoable = !prepared->in_place;
  report.pending = prepared->pending;
  if (report.unchanged) {
    base::Log(base::LogLevel::kWarning,
              "an update from tensors with exactly the weights that are live");
  }
  report.stage_seconds = SecondsSince(begin);
  const Clock::time_point commit = Clock::now();
  Engine::ExclusiveOptions options = {.flush = update.flush_cache, .label = update.weight_version};
  // In the same instant: what began in between would hold its cache while it waits.
  if (!report.pending.empty()) options.hold = Hold::kWait;
  const Status done = Commit(options, /*derive_only=*/false, std::nullopt);
  if (!done) return undo(done.error());
  held_ = held_ || options.hold.has_value();
  report.apply_seconds = SecondsSince(commit);
  SYNCLINE_TRY(Settle(lost_, report.pending));
  return report;
}

}  // namespace syncline::update
