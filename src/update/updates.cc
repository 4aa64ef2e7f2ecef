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
// An update outside a session is the same for one message; a checkpoint is one message too.
//
// Invariants: between two steps all ranks hold the live bytes of the same version, because a step
// and a commit are in one order on all of them. What failed before 2 has changed nothing that is
// live, but what was written in place: then the engine refuses to generate until that has been
// written anew.
#include "update/updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>

#include "base/log.h"
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

// Waits for an asynchronous call.
template <typename Start>
Status WaitFor(const Start& start) {
  auto promise = std::make_shared<std::promise<Status>>();
  start([promise](Status status) { promise->set_value(std::move(status)); });
  return promise->get_future().get();
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

Updates::Updates(Engine& engine, RankWeights& own, const Others& others,
                 const Weights::Options& options)
    : engine_(engine),
      own_(own),
      others_(others),
      options_(options),
      ranks_(static_cast<std::uint32_t>(others.peers().size()) + 1),
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
  return WaitFor([&](Engine::Done done) { engine_.SetVersion(label, std::move(done)); });
}

// ---- all ranks ----

Result<Staged> Updates::AddUp(const Result<Staged>& own, const Answers& answers) const {
  const std::string self = RankText(0, options_.host);
  if (!own && others_.any()) return base::Annotate(own.error(), self);
  if (!own) return std::unexpected(own.error());
  Staged all = *own;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) return std::unexpected(answers[i].error());
    SYNCLINE_ASSIGN(const Staged other, DecodeStaged(*answers[i]));
    if (other.held != own->held) {
      const auto text = [](const std::string& held) { return held.empty() ? "no replica" : held; };
      const ranks::Peer& peer = others_.peers()[i];
      return Fail(Code::kOutOfOrder,
                  fmt::format("the hosts do not hold the same: {} has {}, {} has {}", self,
                              text(own->held), RankText(peer.rank, peer.host), text(other.held)));
    }
    all.tensors = std::max(all.tensors, other.tensors);
    all.skipped = std::max(all.skipped, other.skipped);
    all.bytes += other.bytes;
    // What one rank has and another has not does not count.
    if (other.loaded) all.unchanged = all.unchanged && other.unchanged;
    all.loaded = all.loaded || other.loaded;
    all.in_place = all.in_place || other.in_place;
    for (const std::string& name : other.pending) {
      if (std::ranges::find(all.pending, name) == all.pending.end()) all.pending.push_back(name);
    }
  }
  return all;
}

Result<Staged> Updates::StageEverywhere(const std::string& path) {
  std::future<Answers> asked = others_.Ask(kStage, EncodeText(path));
  const Result<Staged> own = own_.Stage(path);
  Result<Staged> all = AddUp(own, asked.get());
  if (!all && all.error().code == Code::kOutOfOrder && own) {
    return base::Annotate(all.error(), path);
  }
  return all;
}

Result<Staged> Updates::ReceiveEverywhere(const TensorUpdate& update, Selector selector) {
  const auto of = [&](std::size_t rank) -> const std::vector<std::byte>& {
    return update.payloads[update.payloads.size() == 1 ? 0 : rank];
  };
  std::vector<Payload> messages;
  for (std::uint32_t rank = 1; rank < ranks_; ++rank) {
    messages.push_back(Encode(ReceiveRequest{selector, update.format, update.direct, of(rank)}));
  }
  std::vector<std::future<Answers>> asked = others_.AskEach(kReceive, std::move(messages));
  const Result<Staged> own = own_.Receive(selector, update.format, update.direct, of(0));
  Answers answers;
  for (std::future<Answers>& one : asked) {
    Answers answer = one.get();
    answers.push_back(std::move(answer[0]));
  }
  return AddUp(own, answers);
}

Result<Staged> Updates::PrepareEverywhere(Selector selector, bool whole) {
  std::future<Answers> asked = others_.Ask(kPrepare, Encode(PrepareRequest{selector, whole}));
  const Result<Staged> own = own_.Prepare(selector, whole);
  return AddUp(own, asked.get());
}

// Forgets what came, and says to the engine where that leaves it.
Status Updates::DropEverywhere() {
  std::future<Answers> asked = others_.Ask(kDrop, {});
  std::vector<std::string> lost = own_.Drop();
  SYNCLINE_TRY(AddTexts(asked.get(), lost));
  return Settle(std::move(lost), {});
}

Result<bool> Updates::MayWriteInPlace() {
  if (!may_write_) {
    std::future<Answers> asked = others_.Ask(kMayWrite, {});
    bool may = own_.may_write_in_place();
    const Answers answers = asked.get();
    SYNCLINE_TRY(AllWell(answers));
    for (const Result<Payload>& answer : answers) {
      SYNCLINE_ASSIGN(const std::uint64_t other, DecodeNumber(*answer));
      may = may || other != 0;
    }
    may_write_ = may;
  }
  return *may_write_;
}

// ---- the engine ----

Status Updates::ExclusiveWork(const Engine::ExclusiveOptions& options,
                              const std::function<Status()>& work) {
  return WaitFor([&](Engine::Done done) { engine_.Exclusive(options, work, std::move(done)); });
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

// Lets the engine go on, unless something is lost or waits, or a session is writing in place.
Status Updates::Settle(std::vector<std::string> lost, const std::vector<std::string>& pending) {
  // Ranks lose the same parameters, each its part.
  std::ranges::sort(lost);
  const auto twice = std::ranges::unique(lost);
  lost.erase(twice.begin(), twice.end());
  lost_ = std::move(lost);
  std::optional<std::string> incomplete;
  if (!lost_.empty()) {
    incomplete = fmt::format(
        "incomplete update: {} parameters hold parts of an update that failed, and must be "
        "written anew: {}",
        lost_.size(), layout::FirstNamesText(lost_));
  }
  ChangeState([&](SessionState& state) {
    state.incomplete = incomplete;
    state.pending = pending;
  });
  // A session that may write in place keeps the engine held until its end.
  const bool writes = state().open && sync_base_ && may_write_.value_or(false);
  Hold hold = held_ && writes ? Hold::kWait : Hold::kNone;
  if (!pending.empty()) hold = Hold::kWait;
  if (incomplete) hold = Hold::kRefuse;
  if (hold == Hold::kNone && !held_) return {};
  held_ = hold != Hold::kNone;
  return WaitFor(
      [&](Engine::Done done) { engine_.SetHold(hold, incomplete.value_or(""), std::move(done)); });
}

// `derive_only`: nothing came; who wrote past us relies on it.
Status Updates::CommitEverywhere(const Engine::ExclusiveOptions& options, bool derive_only,
                                 const std::optional<std::string>& path) {
  return ExclusiveWork(options, [&]() -> Status {
    std::future<Answers> asked = others_.Command(derive_only ? kDeriveLive : kCommit, {});
    if (derive_only) {
      const Status derived = own_.DeriveLive();
      SYNCLINE_TRY(AllWell(asked.get()));
      return derived;
    }
    lost_ = own_.Commit();
    SYNCLINE_TRY(AddTexts(asked.get(), lost_));
    if (path) {
      const std::scoped_lock lock(mutex_);
      model_path_ = *path;
    }
    return {};
  });
}

// Said before anything is done; the engine looks again when it counts.
Status Updates::CheckFlush(bool flush) const {
  const engine::Stats stats = engine_.stats();
  if (!flush || !stats.paused || stats.running == 0) return {};
  return Fail(Code::kOutOfOrder,
              fmt::format("flush_cache: {} requests are paused in place and hold their cache; send "
                          "flush_cache=false, or pause with mode=retract",
                          stats.running));
}

// ---- checkpoints ----

Result<UpdateReport> Updates::FromDisk(const DiskUpdate& update) {
  Touch();
  SYNCLINE_TRY(CheckFlush(update.flush_cache));
  SYNCLINE_ASSIGN(const bool in_place, MayWriteInPlace());
  const Clock::time_point begin = Clock::now();
  if (in_place) SYNCLINE_TRY(Quiesce(/*hold=*/true));
  const SessionState before = state();
  const auto undo = [&](const base::Error& error) -> Result<UpdateReport> {
    if (before.loaded && !before.failure) {
      ChangeState([&](SessionState& state) {
        state.failure =
            "what had come was dropped for an update from disk, which failed: " + error.message;
      });
    }
    SYNCLINE_TRY(DropEverywhere());
    return std::unexpected(error);
  };
  const Result<Staged> staged = StageEverywhere(update.path);
  if (!staged) return undo(staged.error());
  UpdateReport report = ReportOf(*staged);
  if (report.unchanged) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: an update with exactly the weights that are live", update.path));
  }
  report.stage_seconds = SecondsSince(begin);
  const Clock::time_point commit = Clock::now();
  const Status done =
      CommitEverywhere({.flush = update.flush_cache, .label = update.weight_version},
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
  return report;
}

// ---- sessions ----

Status Updates::Begin(const BeginRequest& request) {
  Touch();
  if (options_.sessions == SessionRule::kIgnored) return {};
  const SessionState now = state();
  if (now.open && (now.selector != request.selector || sync_base_ != request.sync_base)) {
    return Fail(Code::kOutOfOrder,
                "a weight-update session is already open; call end_weight_update() first");
  }
  SYNCLINE_TRY(DropEverywhere());
  SYNCLINE_ASSIGN(const bool in_place, MayWriteInPlace());
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
  return {};
}

void Updates::Close() {
  ChangeState([](SessionState& state) {
    state.open = false;
    state.loaded = false;
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
      SYNCLINE_TRY(DropEverywhere());
      return UpdateReport();
    }
    return Fail(Code::kOutOfOrder,
                "no weight-update session is open; call begin_weight_update() first");
  }
  if (request.abort || now.failure) {
    Close();
    SYNCLINE_TRY(DropEverywhere());
    if (request.abort) return UpdateReport();
    return Fail(Code::kOutOfOrder,
                fmt::format("the session was undone, for an update in it failed: "
                            "{}",
                            *now.failure));
  }
  const Clock::time_point begin = Clock::now();
  const Result<Staged> staged =
      sync_base_ ? PrepareEverywhere(now.selector, /*whole=*/true) : Result<Staged>(Staged());
  if (!staged) {
    Close();
    SYNCLINE_TRY(DropEverywhere());
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
  const Status done = CommitEverywhere({.flush = flush_, .label = now.weight_version},
                                       /*derive_only=*/!now.loaded, std::nullopt);
  Close();
  if (!done) {
    SYNCLINE_TRY(DropEverywhere());
    return base::Annotate(done.error(), "the session was undone");
  }
  report.apply_seconds = SecondsSince(begin);
  SYNCLINE_TRY(Settle(lost_, {}));
  return report;
}

void Updates::Expire(std::chrono::milliseconds silence) {
  if (!state().open || Clock::now() - heard_ < silence) return;
  base::Log(base::LogLevel::kWarning,
            fmt::format("a weight-update session of which nothing was heard for {} s is undone",
                        std::chrono::duration<double>(silence).count()));
  Close();
  if (const Status dropped = DropEverywhere(); !dropped) {
    base::Log(base::LogLevel::kError, dropped.error().message);
  }
}

// ---- tensors ----

Status Updates::CheckPayloads(const TensorUpdate& update) const {
  const std::size_t count = update.payloads.size();
  if (count == ranks_) return {};
  if (count == 1 && update.format == payload::Format::kSafetensors) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("serialized_named_tensors has {} elements, expected one for each of the "
                          "engine's {} ranks",
                          count, ranks_));
}

// The selector of an update: that of the session, if it names none.
Result<Selector> Updates::CheckSession(const TensorUpdate& update) const {
  const SessionState now = state();
  if (!now.open) {
    if (options_.sessions != SessionRule::kRequired)
      return update.selector.value_or(Selector::kAll);
    return Fail(Code::kOutOfOrder,
                "update_weights_from_tensor must run between begin_weight_update() and "
                "end_weight_update()");
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

Result<UpdateReport> Updates::FromTensors(const TensorUpdate& update) {
  Touch();
  SYNCLINE_ASSIGN(const Selector selector, CheckSession(update));
  SYNCLINE_TRY(CheckPayloads(update));
  SYNCLINE_TRY(CheckFlush(update.flush_cache));
  if (!state().open) return ApplyOne(update, selector);
  const Clock::time_point begin = Clock::now();
  const Result<Staged> staged = ReceiveEverywhere(update, selector);
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
  SYNCLINE_ASSIGN(const bool in_place, MayWriteInPlace());
  if (in_place) SYNCLINE_TRY(Quiesce(/*hold=*/true));
  const auto undo = [&](const base::Error& error) -> Result<UpdateReport> {
    SYNCLINE_TRY(DropEverywhere());
    return std::unexpected(error);
  };
  const Result<Staged> received = ReceiveEverywhere(update, selector);
  if (!received) return undo(received.error());
  const Result<Staged> prepared = PrepareEverywhere(selector, /*whole=*/false);
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
  const Status done =
      CommitEverywhere({.flush = update.flush_cache, .label = update.weight_version},
                       /*derive_only=*/false, std::nullopt);
  if (!done) return undo(done.error());
  report.apply_seconds = SecondsSince(commit);
  SYNCLINE_TRY(Settle(lost_, report.pending));
  return report;
}

}  // namespace syncline::update
