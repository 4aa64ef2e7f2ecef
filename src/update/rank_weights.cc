// Protocol of an update on one rank:
//
//   from disk
//   1. If the path is a replica: take its lock shared, and read its marker. No marker: it is not
//      whole, refuse.
//   2. Compare config.json with the target's.
//   3. Read and check every tensor of every runner, and make it ready (transaction.h).
//   4. Read the marker again: a program that does not know the lock may have changed the files
//      meanwhile.
//   from messages
//   1. Read the message. For each tensor, ask every selected runner whether it is its own; one that
//      nobody knows, or that is wrong, fails the message.
//   2. Write the tensors for all of them.
//   3. Prepare: make ready what is complete.
//   from a trainer that writes straight into the memory
//   1. Open: take everything for it, as it is; then let the transfer engine take writes.
//   2. Prepare: let it take no more; make ready what lies there.
//   then
//   5. Commit: copy over the live weights, with no forward running; or Drop.
// Invariant: unless a group is written in place, the live bytes change only in 5, which cannot
// fail. Who reads the live bytes outside of the computing thread (Digests, the checker) holds
// `live_` shared and gives way to a commit within a piece of work; nobody reads them while
// `in_place_` or `released_` is set.
#include "update/rank_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "layout/digest.h"
#include "layout/known_names.h"
#include "model/model.h"
#include "quant/forms.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "tensor/hash.h"
#include "update/load_layout.h"
#include "update/replica_reading.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

std::vector<layout::Arrival> ArrivalsOf(const payload::Batch& batch) {
  std::vector<layout::Arrival> arrivals;
  for (const payload::NamedTensor& tensor : batch.tensors()) {
    arrivals.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  return arrivals;
}

// A library that throws fails the step like anything else, so that who asked undoes it.
template <typename Work>
auto Caught(const std::string& what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(Code::kLimitExceeded, fmt::format("{}: out of memory", what));
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, fmt::format("{}: {}", what, error.what()));
  }
}

}  // namespace

struct RankWeights::OwnRunner {
  OwnRunner(const Runner& runner, std::uint64_t undo_memory)
      : role(runner.role),
        model(*runner.model),
        forms(quant::MakeForms(model.plan(), model.units())),
        transaction(model, *forms, undo_memory),
        checker(checker::MakeChecker(model.plan(), model.units(), model.parameters().live())) {}

  std::string Prefixed(const std::string& name) const {
    return role.empty() ? name : fmt::format("{}.{}", role, name);
  }

  std::string role;
  model::Model& model;
  std::unique_ptr<layout::Forms> forms;
  Transaction transaction;
  std::unique_ptr<checker::Checker> checker;
  std::vector<std::size_t> scrambled;  // by a reset, and not written since
};

// Held while something may be written over live weights in place.
class RankWeights::Writing {
 public:
  explicit Writing(RankWeights& weights) : weights_(weights) {
    if (!weights.may_write_in_place()) return;
    weights.EndReading();
    lock_ = std::unique_lock(weights.live_);
  }
  ~Writing() {
    if (!lock_.owns_lock()) return;
    weights_.in_place_ = weights_.WritesInPlace();
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  RankWeights& weights_;
  std::unique_lock<std::shared_mutex> lock_;
};

RankWeights::RankWeights(base::FileSystem& files, const std::vector<Runner>& runners,
                         Options options, const base::CancelToken& cancel)
    : files_(files),
      options_(std::move(options)),
      cancel_(cancel),
      seeding_(*runners[0].model, cancel),
      reading_(std::make_shared<base::CancelToken>(&cancel)) {
  for (const Runner& runner : runners) {
    runners_.push_back(std::make_unique<OwnRunner>(runner, options_.undo_memory));
  }
}

RankWeights::~RankWeights() = default;

model::Model& RankWeights::target() const { return runners_[0]->model; }

std::vector<RankWeights::OwnRunner*> RankWeights::Selected(Selector selector) const {
  std::vector<OwnRunner*> selected;
  for (const auto& runner : runners_) {
    if (Selects(selector, runner->role)) selected.push_back(runner.get());
  }
  return selected;
}

bool RankWeights::may_write_in_place() const {
  return std::ranges::any_of(
      runners_, [](const auto& runner) { return runner->transaction.may_write_in_place(); });
}

// Every tensor of every runner twice, in a type twice as wide as its own.
std::uint64_t RankWeights::most_message_bytes() const {
  std::uint64_t bytes = std::uint64_t{64} << 20;
  for (const auto& runner : runners_) {
    for (const layout::TensorSpec& tensor : runner->model.plan().tensors()) {
      bytes += 4 * tensor::ByteCount(tensor.dtype, tensor.shape).value_or(0);
    }
  }
  return bytes;
}

Status RankWeights::CompareConfiguration(const std::string& path) const {
  SYNCLINE_ASSIGN(const bool exists, base::Exists(files_, base::JoinPath(path, "config.json")));
  if (!exists) return {};  // weights only: the tensors' names and shapes say whether they fit
  SYNCLINE_ASSIGN(model::ModelConfig config, model::ReadModelConfig(files_, path));
  config.end_tokens = target().config().end_tokens;
  config.model_type = target().config().model_type;
  if (config == target().config()) return {};
  return Fail(
      Code::kIncompatible,
      fmt::format("{}/config.json describes another model than the one that is served", path));
}

Result<Staged> RankWeights::StageIn(const std::string& path) {
  SYNCLINE_TRY(cancel_.Check());
  SYNCLINE_ASSIGN(const ReplicaReading reading, ReplicaReading::Begin(files_, path, cancel_));
  SYNCLINE_TRY(CompareConfiguration(path));
  SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files_, path));
  // A draft's tensors may lie in the same checkpoint.
  const layout::LoadOptions options = {
      .others =
          [&](std::string_view name) {
            return std::ranges::any_of(runners_, [&](const auto& runner) {
              return runner->model.plan().FindTensor(name) != layout::Plan::npos;
            });
          },
      .cancel = &cancel_};
  for (const auto& runner : runners_) {
    SYNCLINE_TRY(runner->transaction.Check(checkpoint, options));
  }
  Staged staged = {.loaded = true, .unchanged = true};
  for (const auto& runner : runners_) {
    SYNCLINE_ASSIGN(const layout::LoadReport loaded,
                    runner->transaction.Load(files_, checkpoint, staging_pool_, options));
    SYNCLINE_ASSIGN(const Transaction::Ready ready, runner->transaction.Prepare(staging_pool_));
    staged.tensors += loaded.tensors;
    staged.skipped += loaded.skipped;
    staged.bytes += loaded.bytes;
    staged.unchanged = staged.unchanged && ready.unchanged;
    staged.in_place = staged.in_place || runner->transaction.writes_in_place();
  }
  SYNCLINE_ASSIGN(staged.held, reading.Held());
  SYNCLINE_TRY(reading.End());
  return staged;
}

Result<Staged> RankWeights::Stage(const std::string& path) {
  return Caught(path, [&] {
    DropAll();
    const Writing writing(*this);
    return StageIn(path);
  });
}

Result<Staged> RankWeights::Receive(Selector selector, payload::Format format, bool direct,
                                    base::ByteSpan message) {
  return Caught("a message of tensors", [&]() -> Result<Staged> {
    SYNCLINE_ASSIGN(const auto batch, payload::Decode(message, format, options_.rank));
    return ReceiveIn(selector, direct, *batch);
  });
}

Result<Staged> RankWeights::Receive(Selector selector, const payload::Batch& batch) {
  return Caught("tensors that came", [&] { return ReceiveIn(selector, /*direct=*/false, batch); });
}

Result<Staged> RankWeights::Prepare(Selector selector, bool whole) {
  return Caught("making ready what came", [&] { return PrepareIn(selector, whole); });
}

Result<Staged> RankWeights::ReceiveIn(Selector selector, bool direct, const payload::Batch& batch) {
  SYNCLINE_TRY(cancel_.Check());
  const std::vector<layout::Arrival> arrivals = ArrivalsOf(batch);
  const std::vector<OwnRunner*> selected = Selected(selector);
  Staged staged;
  if (selected.empty()) return staged;
  std::vector<std::vector<layout::Claim>> claims;
  for (const OwnRunner* runner : selected) {
    SYNCLINE_ASSIGN(claims.emplace_back(), runner->transaction.Find(arrivals, direct));
  }
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const auto is = [&](layout::Claim::Kind kind) {
      return std::ranges::all_of(claims, [&](const auto& own) {
        return own[i].kind == kind || own[i].kind == layout::Claim::Kind::kUnknown;
      });
    };
    if (is(layout::Claim::Kind::kUnknown)) {
      return std::unexpected(selected[0]->transaction.WhyUnknown(arrivals[i]));
    }
    if (is(layout::Claim::Kind::kSkipped)) {
      ++staged.skipped;
    } else {
      ++staged.tensors;
      staged.bytes += arrivals[i].bytes.size();
    }
  }
  const Writing writing(*this);
  for (std::size_t i = 0; i < selected.size(); ++i) {
    SYNCLINE_TRY(selected[i]->transaction.Write(arrivals, claims[i], staging_pool_));
    staged.in_place = staged.in_place || selected[i]->transaction.writes_in_place();
  }
  SYNCLINE_TRY(batch.Intact());
  return staged;
}

Result<WindowInfo> RankWeights::Offer() {
  if (!options_.p2p) return Fail(Code::kInvalidArgument, "--p2p was not asked for");
  if (!window_) {
    SYNCLINE_ASSIGN(window_, Window::Make(*options_.p2p, target(), runners_[0]->transaction));
  }
  return window_->info();
}

Status RankWeights::Open() {
  return Caught("opening the weights", [&] { return OpenIn(); });
}

Status RankWeights::OpenIn() {
  if (!window_) return Fail(Code::kInternal, "the weights were not offered");
  if (may_write_in_place()) {
    const Writing writing(*this);
    return window_->Open(staging_pool_);
  }
  const std::shared_lock lock(live_);  // it is read
  return window_->Open(staging_pool_);
}

Result<std::string> RankWeights::SendLive(const std::string& group) {
  const std::shared_lock lock(live_);
  const Status readable = Readable();
  if (readable) return seeding_.Send(group);
  seeding_.Close(group);
  return std::unexpected(readable.error());
}

Result<std::string> RankWeights::ReceiveLive(const std::string& group) {
  const std::scoped_lock lock(live_);
  return seeding_.Receive(group);
}

std::string RankWeights::Layout() const {
  const layout::Plan& plan = target().plan();
  const quant::Units& units = target().units();
  const auto live = target().parameters().live();
  std::string text;
  for (std::size_t i = 0; i < live.size(); ++i) {
    const layout::TensorSpec& spec = plan.parameters()[i];
    const std::size_t unit = units.UnitOf(i);
    text += fmt::format("{} {} {} {} {}\n", spec.name, tensor::Name(spec.dtype),
                        tensor::ShapeText(spec.shape), live[i].size(),
                        unit == quant::Units::npos ? "" : units.units()[unit].scheme->name());
  }
  return tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(text));
}

Result<Staged> RankWeights::PrepareIn(Selector selector, bool whole) {
  if (window_) window_->Close();
  Staged staged = {.unchanged = true};
  std::string without;
  bool came = false;
  const Writing writing(*this);
  for (const auto& runner : runners_) {
    Transaction& transaction = runner->transaction;
    if (!Selects(selector, runner->role)) {
      // What waits there goes on waiting.
      for (const std::string& half : transaction.Halves()) {
        staged.pending.push_back(runner->Prefixed(half));
      }
      continue;
    }
    SYNCLINE_ASSIGN(const Transaction::Ready ready, transaction.Prepare(staging_pool_));
    for (const std::string& half : ready.halves) staged.pending.push_back(runner->Prefixed(half));
    staged.loaded = staged.loaded || ready.touched;
    if (ready.touched) staged.unchanged = staged.unchanged && ready.unchanged;
    came = came || ready.came;
    if (!ready.came && !runner->role.empty()) without = runner->role;
    staged.in_place = staged.in_place || transaction.writes_in_place();
  }
  if (!whole) return staged;
  if (!staged.pending.empty()) {
    return Fail(Code::kOutOfOrder,
                fmt::format("the update ended without a part of {} modules: {}",
                            staged.pending.size(), layout::FirstNamesText(staged.pending)));
  }
  if (came && !without.empty()) {
    return Fail(Code::kNotFound,
                fmt::format("no tensor came for the runner {} (an update for the target alone says "
                            "selector=target)",
                            without));
  }
  return staged;
}

void RankWeights::EndReading() {
  const std::scoped_lock lock(reading_mutex_);
  reading_->Cancel();
  reading_ = std::make_shared<base::CancelToken>(&cancel_);
}

std::shared_ptr<base::CancelToken> RankWeights::BeginReading() const {
  const std::scoped_lock lock(reading_mutex_);
  return reading_;
}

std::vector<std::string> RankWeights::Commit() {
  EndReading();
  const std::scoped_lock lock(live_);
  for (const auto& runner : runners_) {
    const std::vector<std::size_t> whole = runner->transaction.Commit(commit_pool_);
    std::erase_if(runner->scrambled,
                  [&](std::size_t i) { return std::ranges::find(whole, i) != whole.end(); });
  }
  in_place_ = WritesInPlace();
  return Lost();
}

Status RankWeights::DeriveLive() {
  EndReading();
  const std::scoped_lock lock(live_);
  for (const auto& runner : runners_) {
    SYNCLINE_TRY(runner->model.Derive(runner->model.parameters().live()));
  }
  return {};
}

std::vector<std::string> RankWeights::Drop() {
  const Writing writing(*this);
  DropAll();
  return Lost();
}

Result<std::vector<std::string>> RankWeights::Release() {
  if (released_) return Lost();
  EndReading();
  const std::scoped_lock lock(live_);
  if (!options_.backup_directory.empty()) {
    std::vector<base::ByteSpan> weights;
    for (const auto& runner : runners_) weights.push_back(runner->model.parameters().live_bytes());
    SYNCLINE_ASSIGN(backup_, WeightsBackup::Write(files_, options_.backup_directory, options_.rank,
                                                  weights, cancel_));
  }
  released_ = true;
  for (const auto& runner : runners_) {
    runner->model.parameters().Release();
    if (!backup_) runner->transaction.LoseAll();
  }
  return Lost();
}

Result<std::vector<std::string>> RankWeights::Resume() {
  if (!released_) return Lost();
  const std::scoped_lock lock(live_);
  const auto take = [&]() -> Status {
    std::vector<base::MutableByteSpan> weights;
    for (const auto& runner : runners_) {
      SYNCLINE_TRY(runner->model.parameters().Resume());
      weights.push_back(runner->model.parameters().live_bytes());
    }
    return backup_ ? backup_->Read(weights, cancel_) : Status();
  };
  if (const Status taken = take(); !taken) {
    for (const auto& runner : runners_) runner->model.parameters().Release();
    return base::Annotate(taken.error(), "the weights stay released");
  }
  backup_.reset();
  released_ = false;
  return Lost();
}

void RankWeights::DropAll() {
  if (window_) window_->Close();
  for (const auto& runner : runners_) runner->transaction.Drop(staging_pool_);
}

std::vector<std::string> RankWeights::Lost() const {
  std::vector<std::string> lost;
  for (const auto& runner : runners_) {
    for (const std::string& name : runner->transaction.Lost()) {
      lost.push_back(runner->Prefixed(name));
    }
  }
  return lost;
}

bool RankWeights::WritesInPlace() const {
  return std::ranges::any_of(
      runners_, [](const auto& runner) { return runner->transaction.writes_in_place(); });
}

Status RankWeights::Readable() const {
  if (in_place_) return Fail(Code::kOutOfOrder, "the weights are being written in place");
  if (!released_) return {};
  return Fail(Code::kOutOfOrder, kWeightsReleased);
}

Result<std::vector<layout::OwnedPart>> RankWeights::ExportOwned(std::size_t tensor) const {
  // A release does not hold up the computing thread.
  const std::shared_lock lock(live_, std::try_to_lock);
  if (!lock) return Fail(Code::kOutOfOrder, "the weights are being written");
  SYNCLINE_TRY(Readable());
  // The computing thread's own.
  base::ThreadPool pool(1);
  LoadLayout weights(target(), pool);
  return layout::TakeOwned(target().plan(), tensor, weights.Of(tensor));
}

Status RankWeights::Changed(const base::CancelToken& begun) const {
  if (cancel_.cancelled()) return Fail(Code::kCancelled, "cancelled");
  SYNCLINE_TRY(Readable());
  if (!begun.cancelled()) return {};
  return Fail(Code::kOutOfOrder, "the weights changed while they were read");
}

std::vector<std::string> RankWeights::TensorNames() const {
  std::vector<std::string> names;
  for (const auto& runner : runners_) {
    for (const layout::TensorSpec& tensor : runner->model.plan().tensors()) {
      names.push_back(runner->Prefixed(tensor.name));
    }
  }
  return names;
}

Result<RankDigests> RankWeights::Digests(const base::CancelToken& begun) const {
  const std::shared_lock lock(live_);
  SYNCLINE_TRY(Changed(begun));
  RankDigests digests;
  std::string derived;
  for (const auto& runner : runners_) {
    SYNCLINE_TRY(AddDigests(*runner, begun, digests.tensors, derived));
  }
  if (!derived.empty()) {
    digests.derived = tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(derived));
  }
  return digests;
}

// `derived`: a line for each derived parameter.
Status RankWeights::AddDigests(const OwnRunner& runner, const base::CancelToken& begun,
                               std::vector<tensor::Digest>& tensors, std::string& derived) const {
  const layout::Plan& plan = runner.model.plan();
  LoadLayout weights(runner.model, reading_pool_);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const auto digest = layout::DigestOwned(plan, i, weights.Of(i), &begun);
    if (!digest) return Changed(begun);
    tensors.push_back(*digest);
  }
  const auto live = runner.model.parameters().live();
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    if (!plan.IsDerived(i)) continue;
    SYNCLINE_TRY(Changed(begun));
    const layout::TensorSpec& spec = plan.parameters()[i];
    derived += fmt::format("{} {}\n", runner.Prefixed(spec.name),
                           tensor::DigestOf(live[i], tensor::DigestUnitBytes(spec.dtype)).Hex());
  }
  return {};
}

Status RankWeights::Snapshot(Selector selector) {
  const std::shared_lock lock(live_);
  SYNCLINE_TRY(Readable());
  for (OwnRunner* runner : Selected(selector)) SYNCLINE_TRY(runner->checker->Snapshot());
  return {};
}

// `read(runner, check)` of each selected runner.
template <typename Read>
Result<std::vector<RankCheck>> RankWeights::ReadSelected(Selector selector,
                                                         const base::CancelToken& begun,
                                                         const Read& read) {
  const std::shared_lock lock(live_);
  SYNCLINE_TRY(Changed(begun));
  std::vector<RankCheck> checks;
  for (OwnRunner* runner : Selected(selector)) {
    RankCheck& check = checks.emplace_back();
    check.role = runner->role;
    check.scrambled = runner->scrambled.size();
    const Status done = read(*runner, check);
    if (!done && done.error().code == Code::kCancelled) SYNCLINE_TRY(Changed(begun));
    SYNCLINE_TRY(done);
  }
  return checks;
}

Result<std::vector<RankCheck>> RankWeights::Compare(Selector selector,
                                                    const checker::CheckOptions& options,
                                                    const base::CancelToken& begun) {
  return ReadSelected(selector, begun, [&](OwnRunner& runner, RankCheck& check) -> Status {
    SYNCLINE_ASSIGN(const checker::CompareReport report,
                    runner.checker->Compare(options, reading_pool_, begun));
    for (const checker::Difference& difference : report.skipped_different) {
      base::Log(base::LogLevel::kWarning, fmt::format("weights checker: {} differs, and is skipped",
                                                      runner.Prefixed(difference.name)));
    }
    check.message = report.Message();
    check.compared = report.compared.size();
    return {};
  });
}

Result<std::vector<RankCheck>> RankWeights::Checksums(Selector selector,
                                                      const checker::CheckOptions& options,
                                                      const base::CancelToken& begun) {
  return ReadSelected(selector, begun, [&](OwnRunner& runner, RankCheck& check) -> Status {
    SYNCLINE_ASSIGN(check.checksums, runner.checker->Checksums(options, reading_pool_, begun));
    return {};
  });
}

std::vector<std::string> RankWeights::SkippedNames(Selector selector,
                                                   const checker::CheckOptions& options) const {
  std::vector<std::string> names;
  for (const OwnRunner* runner : Selected(selector)) {
    for (const std::string& name : runner->checker->SkippedNames(options)) {
      names.push_back(runner->Prefixed(name));
    }
  }
  return names;
}

Status RankWeights::Reset(Selector selector, const checker::CheckOptions& options) {
  EndReading();
  const std::scoped_lock lock(live_);
  SYNCLINE_TRY(Readable());
  for (OwnRunner* runner : Selected(selector)) {
    SYNCLINE_ASSIGN(const std::vector<std::size_t> overwritten,
                    runner->checker->Reset(options, ++resets_));
    for (const std::size_t parameter : overwritten) {
      if (std::ranges::find(runner->scrambled, parameter) == runner->scrambled.end()) {
        runner->scrambled.push_back(parameter);
      }
    }
  }
  return {};
}

Result<std::vector<std::string>> RankWeights::PutBack(Selector selector) {
  EndReading();
  const std::scoped_lock lock(live_);
  SYNCLINE_TRY(Readable());
  std::vector<std::string> names;
  for (OwnRunner* runner : Selected(selector)) {
    if (runner->scrambled.empty()) continue;
    SYNCLINE_TRY(runner->checker->PutBack(runner->scrambled));
    for (const std::size_t parameter : runner->scrambled) {
      names.push_back(runner->Prefixed(runner->model.plan().parameters()[parameter].name));
    }
    runner->scrambled.clear();
  }
  return names;
}

PullOutcome RankWeights::Pull(const PullRequest& request) const {
  PullOutcome outcome;
  const auto report =
      replica::Pull(files_, request.source, request.replica,
                    {.version = request.version, .seed = options_.launch_path, .cancel = &cancel_});
  if (!report) outcome.status = std::unexpected(report.error());
  const auto marker = replica::ReplicaState(files_, request.replica).ReadMarker();
  if (marker && *marker) outcome.held = (*marker)->version;
  return outcome;
}

}  // namespace syncline::update
