// Protocol of an update from disk, on rank 0:
//
//   1. Ask every other rank to stage the path (rank_weights.h), and stage it here meanwhile.
//   2. Wait for all. One that failed, or that read another version of its host's replica than this
//      rank did, is the update's failure: nothing is exchanged anywhere.
//   3. Engine::Exclusive: send "exchange" in the order of commands, exchange here, and wait for the
//      others' word; label and path follow in the same instant.
// Invariant: between two steps all ranks hold the live bytes of the same version, because a step and
// an exchange are in one order on all of them.
#include "update/weights.h"

#include <fmt/core.h>

#include <chrono>
#include <future>
#include <mutex>
#include <new>

#include "base/log.h"
#include "base/worker.h"
#include "layout/pieces.h"
#include "model/model.h"
#include "ranks/leader.h"
#include "update/compare_digests.h"
#include "update/rank_protocol.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;
using Clock = std::chrono::steady_clock;
using Answers = std::vector<Result<Payload>>;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What the other ranks answer; none where there are none.
class Others {
 public:
  explicit Others(ranks::Leader* leader) : leader_(leader) {}

  bool any() const { return leader_ != nullptr; }
  const std::vector<ranks::Peer>& peers() const {
    static const std::vector<ranks::Peer> none;
    return any() ? leader_->peers() : none;
  }

  std::future<Answers> Command(RankMessage kind, Payload payload) const {
    auto promise = std::make_shared<std::promise<Answers>>();
    std::future<Answers> answers = promise->get_future();
    if (any()) {
      leader_->CommandAndAsk(kind, std::move(payload),
                             [promise](Answers all) { promise->set_value(std::move(all)); });
    } else {
      promise->set_value({});
    }
    return answers;
  }

  std::future<Answers> Ask(std::span<const ranks::Peer> of, RankMessage kind,
                           Payload payload) const {
    auto promise = std::make_shared<std::promise<Answers>>();
    std::future<Answers> answers = promise->get_future();
    std::vector<std::uint32_t> asked;
    for (const ranks::Peer& peer : of) asked.push_back(peer.rank);
    if (asked.empty()) {
      promise->set_value({});
    } else {
      leader_->Ask(asked, kind, std::move(payload),
                   [promise](Answers all) { promise->set_value(std::move(all)); });
    }
    return answers;
  }

 private:
  ranks::Leader* leader_;
};

std::string RankText(std::uint32_t rank, const std::string& host) {
  return fmt::format("rank {} (host {})", rank, host);
}

class LiveWeights : public Weights {
 public:
  LiveWeights(base::FileSystem& files, engine::Engine& engine, model::Model& model, Options options)
      : files_(files),
        engine_(engine),
        model_(model),
        options_(std::move(options)),
        others_(options_.leader),
        own_(files, model, options_.launch_path, cancel_),
        model_path_(options_.launch_path) {}

  ~LiveWeights() override { LiveWeights::Cancel(); }

  void Cancel() override {
    if (cancel_.cancelled()) return;
    cancel_.Cancel();
    // Else the workers would wait for what others do as long as that takes.
    others_.Ask(others_.peers(), kCancel, {}).wait();
  }

  void FromDisk(DiskUpdate update, Updated done) override {
    updates_.Post([this, update = std::move(update), done = std::move(done)] {
      done(UpdateFromDisk(update));
    });
  }

  void Pull(PullRequest request, std::function<void(std::vector<HostPull>)> done) override {
    pulls_.Post([this, request = std::move(request), done = std::move(done)] {
      done(PullEverywhere(request));
    });
  }

  void Export(std::string name, std::function<void(Result<ExportedTensor>)> done) override;
  std::vector<std::string> names() const override;

  void Digests(DigestRequest request, std::function<void(Result<DigestReport>)> done) override {
    digests_.Post([this, request = std::move(request), done = std::move(done)] {
      done(ComputeDigests(request));
    });
  }

  std::string model_path() const override {
    const std::scoped_lock lock(mutex_);
    return model_path_;
  }

 private:
  // On the update thread.
  Result<UpdateReport> UpdateFromDisk(const DiskUpdate& update);
  Result<Staged> StageEverywhere(const std::string& path);
  Status Apply(const DiskUpdate& update, UpdateReport& report);
  // On the pull thread.
  std::vector<HostPull> PullEverywhere(const PullRequest& request);
  // On the digest thread.
  Result<DigestReport> ComputeDigests(const DigestRequest& request);
  Result<DigestReport> SumDigests();

  base::FileSystem& files_;
  engine::Engine& engine_;
  model::Model& model_;
  const Options options_;
  const Others others_;
  base::CancelToken cancel_;
  RankWeights own_;
  mutable std::mutex mutex_;
  std::string model_path_;  // guarded by mutex_
  std::string source_;      // guarded by mutex_: store of the last pull
  // Last, so that they end first.
  base::Worker updates_;
  base::Worker pulls_;
  base::Worker digests_;
  base::Worker exports_;
};

Result<UpdateReport> LiveWeights::UpdateFromDisk(const DiskUpdate& update) {
  SYNCLINE_TRY(cancel_.Check());
  UpdateReport report;
  const Clock::time_point begin = Clock::now();
  SYNCLINE_ASSIGN(const Staged staged, StageEverywhere(update.path));
  report.tensors = staged.loaded.tensors;
  report.skipped = staged.loaded.skipped;
  report.bytes = staged.loaded.bytes;
  report.unchanged = staged.unchanged;
  if (staged.unchanged) {
    base::Log(base::LogLevel::kWarning,
              fmt::format("{}: an update with exactly the weights that are live", update.path));
  }
  report.stage_seconds = SecondsSince(begin);
  SYNCLINE_TRY(Apply(update, report));
  return report;
}

Result<Staged> LiveWeights::StageEverywhere(const std::string& path) {
  std::future<Answers> asked = others_.Ask(others_.peers(), kStage, EncodeText(path));
  Result<Staged> own = own_.Stage(path);
  const Answers answers = asked.get();  // all: so that nobody stages when the next update begins
  const std::string self = RankText(0, options_.host);
  if (!own && others_.any()) return base::Annotate(own.error(), self);
  if (!own) return std::unexpected(own.error());
  Staged all = *own;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) return std::unexpected(answers[i].error());
    SYNCLINE_ASSIGN(const Staged staged, DecodeStaged(*answers[i]));
    if (staged.held != own->held) {
      const auto text = [](const std::string& held) { return held.empty() ? "no replica" : held; };
      const ranks::Peer& peer = others_.peers()[i];
      return Fail(
          Code::kOutOfOrder,
          fmt::format("{}: the hosts do not hold the same: {} has {}, {} has {}", path, self,
                      text(own->held), RankText(peer.rank, peer.host), text(staged.held)));
    }
    all.loaded.bytes += staged.loaded.bytes;
    all.unchanged = all.unchanged && staged.unchanged;
  }
  return all;
}

Status LiveWeights::Apply(const DiskUpdate& update, UpdateReport& report) {
  std::promise<Status> applied;
  engine_.Exclusive(
      {.flush = update.flush_cache, .label = update.weight_version},
      [&]() -> Status {
        const Clock::time_point begin = Clock::now();
        std::future<Answers> asked = others_.Command(kExchange, {});
        own_.Exchange();
        for (const Result<Payload>& answer : asked.get()) {
          if (!answer) return std::unexpected(answer.error());
        }
        const std::scoped_lock lock(mutex_);
        model_path_ = update.path;
        report.apply_seconds = SecondsSince(begin);
        return {};
      },
      [&](Status status) { applied.set_value(std::move(status)); });
  return applied.get_future().get();
}

std::vector<HostPull> LiveWeights::PullEverywhere(const PullRequest& request) {
  std::vector<ranks::Peer> asked;  // the first rank of each other host
  for (const ranks::Peer& peer : others_.peers()) {
    const std::uint32_t last = asked.empty() ? 0 : asked.back().node_rank;
    if (peer.node_rank != last) asked.push_back(peer);
  }
  std::future<Answers> others = others_.Ask(asked, kPull, Encode(request));
  std::vector<HostPull> pulls = {{.host = options_.host, .node_rank = 0, .outcome = {}}};
  pulls[0].outcome = own_.Pull(request);
  const Answers answers = others.get();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    HostPull& pull = pulls.emplace_back();
    pull.host = asked[i].host;
    pull.node_rank = asked[i].node_rank;
    Result<PullOutcome> outcome =
        answers[i] ? DecodePullOutcome(*answers[i]) : std::unexpected(answers[i].error());
    if (outcome) {
      pull.outcome = *std::move(outcome);
    } else {
      pull.outcome.status = std::unexpected(outcome.error());
    }
  }
  const std::scoped_lock lock(mutex_);
  source_ = request.source;
  return pulls;
}

// Puts the parts of all ranks together. kInternal where they are not the whole tensor.
Result<ExportedTensor> Assemble(const layout::TensorSpec& spec, const std::string& name,
                                std::span<const layout::OwnedPart> own, const Answers& answers) {
  ExportedTensor exported = {name, spec.dtype, spec.shape, {}};
  exported.bytes.resize(spec.bytes());
  std::uint64_t covered = 0;
  const auto add = [&](const layout::OwnedPart& part) -> Status {
    bool fits =
        part.box.begin.size() == spec.shape.size() && part.box.end.size() == spec.shape.size();
    for (std::size_t d = 0; fits && d < spec.shape.size(); ++d) {
      fits = part.box.begin[d] < part.box.end[d] && part.box.end[d] <= spec.shape[d];
    }
    if (!fits || part.bytes.size() != layout::PieceBytes(spec.dtype, part.box)) {
      return Fail(Code::kInternal, fmt::format("tensor {}: a rank exports {} with {} bytes", name,
                                               BoxText(part.box), part.bytes.size()));
    }
    layout::PutBox(spec, part.box, part.bytes, exported.bytes);
    covered += part.bytes.size();
    return {};
  };
  for (const layout::OwnedPart& part : own) SYNCLINE_TRY(add(part));
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(const std::vector<layout::OwnedPart> parts, DecodeOwnedParts(*answer));
    for (const layout::OwnedPart& part : parts) SYNCLINE_TRY(add(part));
  }
  if (covered == spec.bytes()) return exported;
  return Fail(Code::kInternal, fmt::format("tensor {}: all ranks together export {} of {} bytes",
                                           name, covered, spec.bytes()));
}

void LiveWeights::Export(std::string name, std::function<void(Result<ExportedTensor>)> done) {
  const layout::Plan& plan = model_.plan();
  std::size_t tensor = plan.FindTensor(name);
  if (tensor == layout::Plan::npos) tensor = plan.FindAlias(name);
  if (tensor == layout::Plan::npos) {
    return done(Fail(Code::kNotFound, fmt::format("the model has no tensor \"{}\"", name)));
  }
  const bool queued = engine_.BetweenSteps([this, tensor, name = std::move(name), done] {
    auto others =
        std::make_shared<std::future<Answers>>(others_.Command(kExport, EncodeNumber(tensor)));
    auto own = std::make_shared<std::vector<layout::OwnedPart>>(own_.ExportOwned(tensor));
    exports_.Post([this, tensor, name, done, others, own] {
      done(Assemble(model_.plan().tensors()[tensor], name, *own, others->get()));
    });
  });
  if (!queued) done(Fail(Code::kUnavailable, "the engine is shutting down"));
}

std::vector<std::string> LiveWeights::names() const {
  std::vector<std::string> names;
  for (const layout::TensorSpec& tensor : model_.plan().tensors()) names.push_back(tensor.name);
  return names;
}

Result<DigestReport> LiveWeights::SumDigests() {
  struct Begun {
    std::shared_ptr<base::CancelToken> own;
    std::future<Answers> others;
    std::string weight_version;
  };
  auto promise = std::make_shared<std::promise<Begun>>();
  std::future<Begun> begin = promise->get_future();
  const bool queued = engine_.BetweenSteps([this, promise] {
    promise->set_value({.own = own_.BeginDigests(),
                        .others = others_.Command(kDigests, {}),
                        .weight_version = engine_.stats().weight_version});
  });
  if (!queued) return Fail(Code::kUnavailable, "the engine is shutting down");
  Begun begun = begin.get();
  DigestReport report;
  report.weight_version = begun.weight_version;
  report.model_path = model_path();
  Result<RankDigests> own = own_.Digests(*begun.own);
  const Answers answers = begun.others.get();
  if (!own) return std::unexpected(own.error());
  for (const layout::TensorSpec& tensor : model_.plan().tensors()) {
    report.tensors.push_back({tensor.name, own->tensors[report.tensors.size()]});
  }
  report.derived.push_back(own->derived);
  for (const Result<Payload>& answer : answers) {
    if (!answer) return std::unexpected(answer.error());
    SYNCLINE_ASSIGN(const RankDigests other, DecodeRankDigests(*answer));
    if (other.tensors.size() != report.tensors.size()) {
      return Fail(Code::kInternal, fmt::format("a rank knows {} tensors, this one {}",
                                               other.tensors.size(), report.tensors.size()));
    }
    for (std::size_t i = 0; i < other.tensors.size(); ++i) {
      report.tensors[i].digest += other.tensors[i];
    }
    report.derived.push_back(other.derived);
  }
  return report;
}

Result<DigestReport> LiveWeights::ComputeDigests(const DigestRequest& request) {
  constexpr int kAttempts = 5;
  Result<DigestReport> report = SumDigests();
  for (int i = 1; i < kAttempts && !report && report.error().code == Code::kOutOfOrder; ++i) {
    report = SumDigests();
  }
  if (!report || !request.version) return report;
  std::string source = request.source;
  if (source.empty()) {
    const std::scoped_lock lock(mutex_);
    source = source_;
  }
  if (source.empty()) {
    return Fail(Code::kInvalidArgument,
                "no store to compare with: nothing was pulled yet; name one as \"source\"");
  }
  SYNCLINE_ASSIGN(report->comparison,
                  CompareDigests(files_, model_.plan(), report->tensors, source, *request.version,
                                 options_.launch_path, cancel_));
  return report;
}

}  // namespace

std::unique_ptr<Weights> Weights::Create(base::FileSystem& files, engine::Engine& engine,
                                         model::Model& model, Options options) {
  return std::make_unique<LiveWeights>(files, engine, model, std::move(options));
}

}  // namespace syncline::update
