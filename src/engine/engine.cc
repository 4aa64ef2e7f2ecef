// The engine's thread.
//
// Protocol of one turn of the loop:
//   1. Take all queued commands and do them in order. A command changes only what the members below
//      hold.
//   2. Settle: run the exclusive commands that may run, answer flushes that are due, and open the
//      gate if nothing closes it.
//   3. If generation is neither paused nor held, compute one step.
// Invariants: weights change only in 2 (or in 1, while paused), or on other threads while the engine
// is held, so never during a forward pass. The gate is closed exactly while generation is paused or
// held or an exclusive command waits; what is gated was never given to the scheduler. Each submitted
// request gets exactly one event with `finish`.
#include "engine/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/pool.h"
#include "engine/check_request.h"
#include "engine/scheduler.h"
#include "engine/token_rate.h"
#include "model/model.h"

namespace syncline::engine {
namespace {

using base::Code;
using base::Fail;
using base::Status;
using Clock = std::chrono::steady_clock;

Finish Aborted(std::string message, int http_status = 0) {
  return {.kind = Finish::Kind::kAbort, .message = std::move(message), .http_status = http_status};
}

class EngineThread : public Engine {
 public:
  EngineThread(const EngineOptions& options, model::Model& model,
               const text::Vocabulary& vocabulary, std::vector<TokenId> end_tokens,
               std::string weight_version, std::uint32_t blocks)
      : options_(options),
        model_(model),
        vocabulary_(vocabulary),
        end_tokens_(std::move(end_tokens)),
        limits_{.vocabulary = model.config().vocabulary,
                .max_context = std::min<std::uint32_t>(
                    options.max_context > 0 ? options.max_context : model.config().max_positions,
                    blocks * model::kKvBlock),
                .experts = model.config().experts.has_value()},
        scheduler_(blocks, {.max_running = options.max_running,
                            .prefill_rows = std::max<std::uint32_t>(options.prefill_tokens, 1),
                            .share_prefixes = options.prefix_cache,
                            .share_across_weights = options.prefix_cache_across_versions}),
        version_(std::move(weight_version)) {
    UpdateStats();
    thread_ = std::thread([this] { Loop(); });
  }

  ~EngineThread() override { Stop("the engine is shutting down"); }

  using Engine::Stop;
  void Stop(std::string reason) override;
  Status Submit(Request request, Sink sink) override;
  void Abort(std::string id, AbortMatch match, std::string message) override;
  void Pause(PauseMode mode, Done done) override;
  void Continue(Done done) override;
  void Flush(std::chrono::milliseconds wait, Done done) override;
  void Exclusive(ExclusiveOptions options, std::function<Status()> work, Done done) override;
  bool BetweenSteps(std::function<void()> work) override { return Enqueue(std::move(work)); }
  void SetHold(Hold hold, std::string reason, Done done) override;
  void SetVersion(std::string label, Done done) override;

  Stats stats() const override {
    const std::scoped_lock lock(mutex_);
    return stats_;
  }
  std::uint32_t max_context() const override { return limits_.max_context; }
  std::uint32_t vocabulary_size() const override { return limits_.vocabulary; }

 private:
  struct PendingExclusive {
    ExclusiveOptions options;
    std::function<Status()> work;
    Done done;
  };
  struct PendingFlush {
    Clock::time_point deadline;
    Done done;
  };

  // False after the start of Stop().
  bool Enqueue(std::function<void()> command);
  // Why nothing is done any more.
  Status Refusal() const {
    const std::scoped_lock lock(mutex_);
    return Fail(Code::kUnavailable, stop_reason_);
  }
  // Runs command(done) on the engine's thread, or refuses.
  void EnqueueWith(const Done& done, std::function<void(const Done&)> command);

  // All below runs on the engine's thread.
  void Loop();
  static void Do(const std::function<void()>& command);
  bool TakeCommands(std::vector<std::function<void()>>& commands);
  void Settle();
  void RunExclusive(PendingExclusive exclusive);
  Status ChangeKv(KvMemory change);
  Status CheckIdle() const;
  void SettleFlush();
  void OpenGate();
  void ChangeHold(Hold hold, const std::string& reason);
  // Nothing is computed.
  bool still() const { return paused_ || hold_ != Hold::kNone; }
  void ComputeStep();
  void KeepExperts(const Step& step);
  void Finished(const Work& work, std::span<float> logits);
  void AbortTaken(const std::vector<std::unique_ptr<Sequence>>& taken, const Finish& finish);
  void AbortScheduled(const Finish& finish);
  void AbortAll(const Finish& finish);
  bool CanFlush() const;
  bool idle() const { return scheduler_.empty() && gate_.empty(); }
  void UpdateStats();

  const EngineOptions options_;
  model::Model& model_;
  const text::Vocabulary& vocabulary_;
  const std::vector<TokenId> end_tokens_;
  const RequestLimits limits_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  // Guarded by mutex_: requests that are not finished
  std::set<std::string, std::less<>> ids_;
  std::uint64_t submitted_ = 0;         // guarded by mutex_
  Stats stats_;                         // guarded by mutex_
  bool stop_ = false;                   // guarded by mutex_
  std::string stop_reason_;             // guarded by mutex_
  std::optional<std::string> refusal_;  // guarded by mutex_: why requests are refused for now

  // Of the engine's thread.
  Scheduler scheduler_;
  std::string version_;
  bool paused_ = false;
  Hold hold_ = Hold::kNone;
  std::string hold_reason_;
  std::deque<std::unique_ptr<Sequence>> gate_;
  std::deque<PendingExclusive> exclusives_;
  std::optional<PendingFlush> flush_;
  std::vector<float> logits_;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t generated_tokens_ = 0;
  std::uint64_t steps_ = 0;
  double step_seconds_ = 0;
  TokenRate rate_;

  std::mutex joining_;
  std::thread thread_;  // guarded by joining_
};

void EngineThread::Stop(std::string reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (!stop_) stop_reason_ = std::move(reason);
    stop_ = true;
  }
  wake_.notify_one();
  const std::scoped_lock lock(joining_);
  if (thread_.joinable()) thread_.join();
}

bool EngineThread::Enqueue(std::function<void()> command) {
  {
    const std::scoped_lock lock(mutex_);
    if (stop_) return false;
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
  return true;
}

void EngineThread::EnqueueWith(const Done& done, std::function<void(const Done&)> command) {
  const bool queued = Enqueue([this, done, command = std::move(command)] {
    command([this, done](Status status) {
      UpdateStats();  // whoever is answered sees what was done
      done(std::move(status));
    });
  });
  if (!queued) done(Refusal());
}

Status EngineThread::Submit(Request request, Sink sink) {
  SYNCLINE_TRY(CheckRequest(request, limits_));
  request.sampling.max_new_tokens =
      std::min(request.sampling.max_new_tokens,
               limits_.max_context - static_cast<std::uint32_t>(request.input_ids.size()));
  std::uint64_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (stop_) return Fail(Code::kUnavailable, stop_reason_);
    if (refusal_) return Fail(Code::kUnavailable, *refusal_);
    // What has not begun to run, also where it has not been looked at yet.
    const std::size_t queued = ids_.size() - std::min<std::size_t>(ids_.size(), stats_.running);
    if (options_.max_queued > 0 && queued >= options_.max_queued) {
      return Fail(Code::kLimitExceeded,
                  fmt::format("{} requests wait already, which is the limit", queued));
    }
    if (!ids_.insert(request.id).second) {
      return Fail(Code::kAlreadyExists,
                  fmt::format("rid: a request \"{}\" is running already", request.id));
    }
    number = ++submitted_;
  }
  // The id is free again before the client can know that the request is finished.
  Sink telling = [this, id = request.id, sink = std::move(sink)](Event event) {
    if (event.finish) {
      const std::scoped_lock lock(mutex_);
      ids_.erase(id);
    }
    sink(std::move(event));
  };
  // Seeds that differ for each request, and repeat with the engine's seed.
  const std::uint64_t seed = options_.seed * 0x9E3779B97F4A7C15 + number;
  auto sequence = std::make_shared<std::unique_ptr<Sequence>>(std::make_unique<Sequence>(
      std::move(request), std::move(telling), vocabulary_, end_tokens_, seed));
  const bool queued = Enqueue([this, sequence] {
    gate_.push_back(std::move(*sequence));
    if (hold_ == Hold::kRefuse) ChangeHold(hold_, hold_reason_);  // came just before
    OpenGate();  // now, so that an exclusive command behind it waits for it
  });
  if (!queued) return Refusal();
  return {};
}

void EngineThread::Abort(std::string id, AbortMatch match, std::string message) {
  Enqueue([this, id = std::move(id), match, message = std::move(message)] {
    const auto chosen = [&](const Sequence& sequence) {
      const std::string& own = sequence.request().id;
      if (match == AbortMatch::kExact) return own == id;
      return match == AbortMatch::kAll || own.starts_with(id);
    };
    AbortTaken(scheduler_.Take(chosen), Aborted(message));
    std::vector<std::unique_ptr<Sequence>> gated;
    for (auto& sequence : gate_) {
      if (chosen(*sequence)) gated.push_back(std::move(sequence));
    }
    std::erase(gate_, nullptr);
    AbortTaken(gated, Aborted(message));
  });
}

void EngineThread::Pause(PauseMode mode, Done done) {
  EnqueueWith(done, [this, mode](const Done& paused) {
    paused_ = true;
    if (mode == PauseMode::kAbort) AbortScheduled(Aborted("Aborted by a pause of generation"));
    if (mode == PauseMode::kRetract) scheduler_.RetractAll();
    paused({});
  });
}

void EngineThread::Continue(Done done) {
  EnqueueWith(done, [this](const Done& continued) {
    paused_ = false;
    continued({});
  });
}

void EngineThread::Flush(std::chrono::milliseconds wait, Done done) {
  EnqueueWith(done, [this, wait](const Done& flushed) {
    if (CanFlush()) {
      scheduler_.Forget();
      return flushed({});
    }
    if (wait.count() <= 0) {
      return flushed(
          Fail(Code::kOutOfOrder, fmt::format("Running: {}, waiting: {}.", scheduler_.running(),
                                              scheduler_.waiting() + gate_.size())));
    }
    if (flush_) {
      return flushed(Fail(Code::kLocked, "Another flush_cache is already in progress."));
    }
    flush_ = PendingFlush{Clock::now() + wait, flushed};
  });
}

void EngineThread::Exclusive(ExclusiveOptions options, std::function<Status()> work, Done done) {
  EnqueueWith(done,
              [this, options = std::move(options), work = std::move(work)](const Done& finished) {
                if (options.idle) {
                  if (const Status idle = CheckIdle(); !idle) return finished(idle);
                }
                exclusives_.push_back({options, work, finished});
              });
}

void EngineThread::SetHold(Hold hold, std::string reason, Done done) {
  EnqueueWith(done, [this, hold, reason = std::move(reason)](const Done& changed) {
    ChangeHold(hold, reason);
    changed({});
  });
}

void EngineThread::ChangeHold(Hold hold, const std::string& reason) {
  hold_ = hold;
  hold_reason_ = reason;
  scheduler_.WeightsChanged();  // or will have, when it is released
  {
    const std::scoped_lock lock(mutex_);
    const bool refuses = hold == Hold::kRefuse || hold == Hold::kShut;
    refusal_ = refuses ? std::optional(reason) : std::nullopt;
  }
  if (hold == Hold::kRefuse) AbortAll(Aborted(reason, 503));
}

void EngineThread::SetVersion(std::string label, Done done) {
  EnqueueWith(done, [this, label = std::move(label)](const Done& set) {
    version_ = label;
    set({});
  });
}

bool EngineThread::CanFlush() const {
  // What waits at the gate, or retracted, holds no memory.
  return still() ? scheduler_.running() == 0 : idle();
}

// False once the engine is to stop.
bool EngineThread::TakeCommands(std::vector<std::function<void()>>& commands) {
  std::unique_lock lock(mutex_);
  const bool has_work = !still() && !idle();
  if (!has_work) {
    // Comes by once a second all the same, to say that it is alive; sooner if a flush is due.
    auto until = Clock::now() + std::chrono::seconds(1);
    if (flush_) until = std::min(until, flush_->deadline);
    wake_.wait_until(lock, until, [&] { return stop_ || !commands_.empty(); });
  }
  commands.swap(commands_);
  return !stop_;
}

// Memory can run out in a command; the engine goes on.
void EngineThread::Do(const std::function<void()>& command) {
  try {
    command();
  } catch (const std::exception& error) {
    base::Log(base::LogLevel::kError, fmt::format("a command failed: {}", error.what()));
  }
}

void EngineThread::Loop() {
  std::vector<std::function<void()>> commands;
  while (TakeCommands(commands)) {
    for (auto& command : commands) {
      Do(command);
      // A command behind an exclusive one must not overtake it while nothing is computed.
      if (still() && !exclusives_.empty()) Settle();
    }
    commands.clear();
    Settle();
    if (!still()) {
      ComputeStep();
      Settle();  // what waited for the last request to end
    }
    UpdateStats();
  }
  for (auto& command : commands) Do(command);
  AbortAll(Aborted(Refusal().error().message, 503));
  for (PendingExclusive& exclusive : std::exchange(exclusives_, {})) exclusive.done(Refusal());
  if (flush_) flush_->done(Refusal());
}

void EngineThread::Settle() {
  while (!exclusives_.empty() && (still() || scheduler_.empty())) {
    PendingExclusive exclusive = std::move(exclusives_.front());
    exclusives_.pop_front();
    RunExclusive(std::move(exclusive));
  }
  SettleFlush();
  OpenGate();
}

void EngineThread::RunExclusive(PendingExclusive exclusive) {
  if (exclusive.options.idle && !CanFlush()) return exclusive.done(CheckIdle());
  if (exclusive.options.flush && scheduler_.running() > 0) {
    return exclusive.done(FlushRefused(static_cast<std::uint32_t>(scheduler_.running())));
  }
  Status status;
  if (exclusive.options.flush || exclusive.options.kv) scheduler_.Forget();
  scheduler_.WeightsChanged();
  try {
    if (exclusive.options.kv) status = ChangeKv(*exclusive.options.kv);
    if (status) status = exclusive.work();
  } catch (const std::exception& error) {
    status = Fail(Code::kInternal, error.what());
  }
  if (status && exclusive.options.label) version_ = *exclusive.options.label;
  if (status && exclusive.options.hold) ChangeHold(*exclusive.options.hold, "");
  exclusive.done(std::move(status));
}

Status EngineThread::ChangeKv(KvMemory change) {
  if (change == KvMemory::kRelease) return model_.ReserveKv(0);
  Status taken = model_.ReserveKv(scheduler_.blocks_total());
  // A rank may have it.
  if (!taken) {
    static_cast<void>(model_.ReserveKv(0));
    return base::Annotate(taken.error(), "the key-value cache stays released");
  }
  return {};
}

Status EngineThread::CheckIdle() const {
  if (CanFlush()) return {};
  if (still()) {
    return Fail(
        Code::kOutOfOrder,
        fmt::format("{} requests are paused in place and hold their cache; end them, or pause "
                    "with mode=retract",
                    scheduler_.running()));
  }
  return Fail(Code::kOutOfOrder,
              fmt::format("the engine is not idle (running: {}, waiting: {}); wait, abort the "
                          "requests, or pause generation",
                          scheduler_.running(), scheduler_.waiting() + gate_.size()));
}

void EngineThread::SettleFlush() {
  if (!flush_) return;
  const bool can = CanFlush();
  if (!can && Clock::now() < flush_->deadline) return;
  const Done done = std::move(flush_->done);
  flush_.reset();
  if (can) scheduler_.Forget();
  done(can ? Status() : Fail(Code::kTimeout, "Timed out waiting for idle state."));
}

void EngineThread::OpenGate() {
  if (still() || !exclusives_.empty()) return;
  for (auto& sequence : std::exchange(gate_, {})) scheduler_.Add(std::move(sequence));
}

void EngineThread::ComputeStep() {
  const Step step = scheduler_.Plan();
  if (step.work.empty()) return;
  const std::size_t vocabulary = limits_.vocabulary;
  logits_.resize(step.batch.logits_rows.size() * vocabulary);
  const Clock::time_point begin = Clock::now();
  const Status computed = model_.Forward(step.batch, logits_);
  ++steps_;
  step_seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
  if (!computed) {
    base::Log(base::LogLevel::kError, computed.error().message);
    return AbortScheduled(
        Aborted(computed.error().message, Info(computed.error().code).http_status));
  }
  if (step.batch.experts) KeepExperts(step);
  for (const Work& work : step.work) {
    Finished(work, std::span(logits_).subspan(work.first_logits_row * vocabulary));
  }
}

void EngineThread::KeepExperts(const Step& step) {
  const std::span<const std::int32_t> all = model_.chosen_experts();
  const std::size_t width = all.size() / step.batch.tokens.size();
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const model::SequenceSlice& slice = step.batch.sequences[i];
    Sequence& sequence = *step.work[i].sequence;
    if (!sequence.request().experts_from) continue;
    sequence.AddExperts(slice.length, all.subspan(slice.begin * width, slice.length * width));
  }
}

// One sequence's part of a step is computed.
void EngineThread::Finished(const Work& work, std::span<float> logits) {
  Sequence& sequence = *work.sequence;
  const std::size_t vocabulary = limits_.vocabulary;
  std::size_t row = 0;
  for (std::uint32_t i = work.input_logprobs.first; i < work.input_logprobs.last; ++i) {
    sequence.AddInputLogprob(i, logits.subspan(row++ * vocabulary, vocabulary));
  }
  if (!sequence.decoding()) prompt_tokens_ += work.length;
  sequence.Advance(work.length, version_);
  scheduler_.Publish(sequence);
  bool ended = false;
  if (work.choose) {
    ended = sequence.Generate(logits.subspan(row * vocabulary, vocabulary), version_);
    ++generated_tokens_;
    rate_.Add(1);
  } else if (sequence.remaining() == 0) {
    sequence.End({.kind = Finish::Kind::kLength, .length = 0}, version_);
    ended = true;
  }
  if (ended) scheduler_.Remove(&sequence);
}

void EngineThread::AbortTaken(const std::vector<std::unique_ptr<Sequence>>& taken,
                              const Finish& finish) {
  for (const auto& sequence : taken) sequence->End(finish, version_);
}

void EngineThread::AbortScheduled(const Finish& finish) {
  AbortTaken(scheduler_.Take([](const Sequence&) { return true; }), finish);
}

void EngineThread::AbortAll(const Finish& finish) {
  AbortScheduled(finish);
  for (const auto& sequence : std::exchange(gate_, {})) sequence->End(finish, version_);
}

void EngineThread::UpdateStats() {
  const Stats stats = {
      .paused = paused_,
      .hold = hold_,
      .running = static_cast<std::uint32_t>(scheduler_.running()),
      .waiting = static_cast<std::uint32_t>(scheduler_.waiting()),
      .gated = static_cast<std::uint32_t>(gate_.size()),
      .kv_tokens_used = std::uint64_t{scheduler_.blocks_used()} * model::kKvBlock,
      .kv_tokens_total = std::uint64_t{scheduler_.blocks_total()} * model::kKvBlock,
      .prompt_tokens = prompt_tokens_,
      .cached_tokens = scheduler_.reused_tokens(),
      .generated_tokens = generated_tokens_,
      .tokens_per_second = rate_.PerSecond(),
      .steps = steps_,
      .step_seconds = step_seconds_,
      .collective_seconds = model_.CollectiveSeconds(),
      .weight_version = version_,
      .alive = Clock::now(),
  };
  const std::scoped_lock lock(mutex_);
  stats_ = stats;
}

// What the kernel expects to be able to give without swapping. Where it does not say: little, so
// that any machine has it.
std::uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");  // has no size, so it is no matter for base::FileSystem
  std::string name;
  std::uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes << 10;
    file.ignore(80, '\n');
  }
  return std::uint64_t{1} << 30;
}

}  // namespace

Status FlushRefused(std::uint32_t resident) {
  return Fail(Code::kOutOfOrder,
              fmt::format("flush_cache: {} requests are paused in place and hold their cache; send "
                          "flush_cache=false, or pause with mode=retract",
                          resident));
}

base::Result<std::unique_ptr<Engine>> Engine::Start(const EngineOptions& options,
                                                    model::Model& model,
                                                    const text::Vocabulary& vocabulary,
                                                    std::vector<TokenId> end_tokens,
                                                    std::string weight_version) {
  std::uint64_t bytes = options.kv_cache_bytes;
  if (bytes == 0) {
    bytes =
        std::min<std::uint64_t>(AvailableMemory() / 4 / options.ranks_here, std::uint64_t{4} << 30);
  }
  const std::uint64_t block_bytes = model::kKvBlock * model.KvBytesPerToken();
  const std::uint64_t blocks = std::min<std::uint64_t>(bytes / block_bytes, 1U << 26);
  if (blocks < 2) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the key-value cache of {} holds less than two blocks of {}",
                            base::HumanBytes(bytes), base::HumanBytes(block_bytes)));
  }
  SYNCLINE_TRY(model.ReserveKv(static_cast<std::uint32_t>(blocks)));
  const auto vocabulary_size = model.config().vocabulary;
  std::erase_if(end_tokens, [&](TokenId token) {
    return token < 0 || static_cast<std::uint32_t>(token) >= vocabulary_size;
  });
  return std::make_unique<EngineThread>(options, model, vocabulary, std::move(end_tokens),
                                        std::move(weight_version),
                                        static_cast<std::uint32_t>(blocks));
}

}  // namespace syncline::engine
