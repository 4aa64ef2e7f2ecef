// Slow work runs on three threads: updates, pulls, and reading of the live weights, each in its order.
// A fourth one looks whether a session has been left alone.
#include "update/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/task_threads.h"
#include "base/wait_for.h"
#include "base/worker.h"
#include "model/model.h"
#include "update/others.h"
#include "update/producer.h"
#include "update/rank_protocol.h"
#include "update/readings.h"
#include "update/seeds.h"
#include "update/updates.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

std::vector<Runner> AllRunners(model::Model& target, const std::vector<Runner>& drafts) {
  std::vector<Runner> runners = {{.role = "", .model = &target}};
  runners.insert(runners.end(), drafts.begin(), drafts.end());
  return runners;
}

class LiveWeights : public Weights {
 public:
  LiveWeights(base::FileSystem& files, engine::Engine& engine, model::Model& model, Options options)
      : files_(files),
        plan_(model.plan()),
        options_(std::move(options)),
        others_(options_.leader),
        own_(files, AllRunners(model, options_.drafts),
             {.launch_path = options_.launch_path,
              .undo_memory = options_.undo_memory,
              .backup_directory = options_.backup_directory,
              .p2p = options_.p2p},
             cancel_),
        engine_(engine),
        seeds_(own_, others_, options_.host),
        own_groups_({.timeout = options_.transfer_timeout, .most_bytes = own_.most_message_bytes()},
                    cancel_),
        groups_(own_groups_, others_, options_.host),
        producer_(own_, options_.transfer_timeout, cancel_),
        changes_(engine, own_, own_groups_, producer_, others_, options_),
        readings_(files, engine, plan_, own_, others_, cancel_, options_.launch_path) {
    if (options_.await_weights) {
      if (const Status held = changes_.AwaitWeights(); !held) {
        base::Log(base::LogLevel::kError, held.error().message);
      }
    }
    if (options_.session_timeout.count() > 0) {
      watch_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
    }
  }

  ~LiveWeights() override { LiveWeights::Cancel(); }

  void Cancel() override {
    if (cancel_.cancelled()) return;
    cancel_.Cancel();
    // Else the workers would wait for what others do as long as that takes.
    others_.Ask(kCancel, {}).wait();
  }

  void FromDisk(DiskUpdate update, Updated done) override {
    updates_.Post([this, update = std::move(update), done = std::move(done)] {
      done(Run([&] { return changes_.FromDisk(update); }));
    });
  }
  void FromTensors(TensorUpdate update, Updated done) override {
    updates_.Post([this, update = std::move(update), done = std::move(done)] {
      done(Run([&] {
        return update.endpoints.empty() ? changes_.FromTensors(update)
                                        : changes_.FromProducers(update);
      }));
    });
  }
  void Begin(BeginRequest request, std::function<void(Status)> done) override {
    updates_.Post([this, request, done = std::move(done)] {
      done(Run([&] { return changes_.Begin(request); }));
    });
  }
  void End(EndRequest request, Updated done) override {
    updates_.Post([this, request, done = std::move(done)] {
      done(Run([&] { return changes_.End(request); }));
    });
  }
  Result<std::vector<WindowInfo>> Offer() override {
    std::promise<Result<std::vector<WindowInfo>>> offered;
    updates_.Post([&] { offered.set_value(Run([&] { return changes_.Offer(); })); });
    return offered.get_future().get();
  }
  void OpenSeed(SeedGroups groups,
                std::function<void(Result<std::vector<std::uint16_t>>)> done) override {
    transfers_.Run([this, groups = std::move(groups), done = std::move(done)] {
      done(Run([&]() -> Result<std::vector<std::uint16_t>> {
        SYNCLINE_ASSIGN(std::vector<std::uint16_t> ports, seeds_.Open(groups));
        if (!groups.ports.empty()) SYNCLINE_TRY(seeds_.Wait(groups.name));
        return ports;
      }));
    });
  }
  // The other engine may never come: updates do not wait for that.
  void SendSeed(std::string name, std::function<void(Result<SeedReport>)> done) override {
    transfers_.Run([this, name = std::move(name), done = std::move(done)] {
      const Status come = Run([&]() -> Status {
        SYNCLINE_TRY(CheckSeed(name));
        return seeds_.Wait(name);
      });
      if (!come) return done(std::unexpected(come.error()));
      updates_.Post([this, name, done] {
        done(Run([&]() -> Result<SeedReport> {
          SYNCLINE_TRY(CheckSeed(name));
          SYNCLINE_ASSIGN(std::vector<std::string> hashes, seeds_.Send(name));
          return SeedReport{engine_.stats().weight_version, std::move(hashes)};
        }));
      });
    });
  }
  Status TakeSeed(SeedGroups groups, const std::function<Result<SeedReport>()>& expected) override;
  std::string layout() const override { return own_.Layout(); }
  void JoinGroup(GroupRequest request, std::function<void(Status)> done) override {
    transfers_.Run([this, request = std::move(request), done = std::move(done)] {
      done(Run([&] { return groups_.Join(request); }));
    });
  }
  void LeaveGroup(std::string name, std::function<void(Status)> done) override {
    transfers_.Run([this, name = std::move(name), done = std::move(done)] {
      done(Run([&] { return groups_.Leave(name); }));
    });
  }
  void FromGroup(GroupUpdate update, Updated done) override {
    transfers_.Run([this, update = std::move(update), done = std::move(done)] {
      ReceiveThenUpdate(update, done);
    });
  }
  // Not behind the updates: it takes no lock.
  void SetVersion(std::string label, std::function<void(Status)> done) override {
    labels_.Post([this, label = std::move(label), done = std::move(done)] {
      done(changes_.SetVersion(label));
    });
  }
  SessionState session() const override { return changes_.state(); }

  void ReleaseMemory(MemoryParts parts, std::function<void(Status)> done) override {
    updates_.Post([this, parts, done = std::move(done)] {
      done(Run([&] { return changes_.ReleaseMemory(parts); }));
    });
  }
  void ResumeMemory(MemoryParts parts, std::function<void(Status)> done) override {
    updates_.Post([this, parts, done = std::move(done)] {
      done(Run([&] { return changes_.ResumeMemory(parts); }));
    });
  }

  void Pull(PullRequest request, std::function<void(std::vector<HostPull>)> done) override {
    pulls_.Post([this, request = std::move(request), done = std::move(done)] {
      done(PullEverywhere(request));
    });
  }

  void Export(std::string name, std::function<void(Result<ExportedTensor>)> done) override {
    readings_.Export(std::move(name), done);
  }
  std::vector<std::string> names() const override;

  void Digests(DigestRequest request, std::function<void(Result<DigestReport>)> done) override {
    reading_.Post([this, request = std::move(request), done = std::move(done)] {
      const std::string source = request.source.empty() ? LastSource() : request.source;
      done(readings_.Digests(request, source, [this] { return changes_.model_path(); }));
    });
  }
  void Check(CheckRequest request, std::function<void(Result<CheckReport>)> done) override {
    reading_.Post([this, request = std::move(request), done = std::move(done)] {
      done(Run([&] { return readings_.Check(request); }));
    });
  }

  std::string model_path() const override { return changes_.model_path(); }

 private:
  // Memory that runs out is an answer too.
  template <typename Work>
  auto Run(const Work& work) const -> decltype(work()) {
    try {
      SYNCLINE_TRY(cancel_.Check());
      return work();
    } catch (const std::exception& error) {
      return Fail(Code::kLimitExceeded, error.what());
    }
  }
  void Watch(const std::stop_token& stop);
  std::string LastSource() const {
    const std::scoped_lock lock(mutex_);
    return source_;
  }
  // Weights that are not whole are sent to nobody.
  Status CheckSeed(const std::string& name) const {
    const SessionState now = changes_.state();
    if (!now.incomplete && !now.released.weights) return {};
    seeds_.Close(name);
    return Fail(Code::kOutOfOrder, now.incomplete.value_or(kWeightsReleased));
  }
  void ReceiveThenUpdate(const GroupUpdate& update, const Updated& done);
  // On the pull thread.
  std::vector<HostPull> PullEverywhere(const PullRequest& request);

  base::FileSystem& files_;
  const layout::Plan& plan_;
  const Options options_;
  const Others others_;
  base::CancelToken cancel_;
  RankWeights own_;
  engine::Engine& engine_;
  const Seeds seeds_;
  RankGroups own_groups_;
  Groups groups_;
  RankProducer producer_;
  Updates changes_;
  Readings readings_;
  mutable std::mutex mutex_;
  std::string source_;  // guarded by mutex_: store of the last pull
  // Last, so that they end first.
  base::Worker updates_;
  base::TaskThreads transfers_;  // they post to updates_
  base::Worker labels_;
  base::Worker pulls_;
  base::Worker reading_;
  std::jthread watch_;
};

Status LiveWeights::TakeSeed(SeedGroups groups,
                             const std::function<Result<SeedReport>()>& expected) {
  const std::string name = groups.name;
  SYNCLINE_TRY(seeds_.Open(groups));
  // A seed that refuses, or is gone, would be waited for.
  auto asked = std::async(std::launch::async, [&] {
    Result<SeedReport> sent = expected();
    if (!sent) seeds_.Close(name);
    return sent;
  });
  const Result<std::vector<std::string>> hashes = seeds_.Receive(name);
  const Result<SeedReport> answer = asked.get();
  seeds_.Close(name);
  SYNCLINE_ASSIGN(const SeedReport sent, answer);
  SYNCLINE_TRY(hashes);
  if (*hashes != sent.hashes) {
    return Fail(Code::kChecksumMismatch,
                fmt::format("the weights that came have the hashes {}, expected {}",
                            fmt::join(*hashes, " "), fmt::join(sent.hashes, " ")));
  }
  return base::WaitFor<Status>(
      [&](auto done) { SetVersion(sent.weight_version, std::move(done)); });
}

void LiveWeights::ReceiveThenUpdate(const GroupUpdate& update, const Updated& done) {
  const Result<std::uint64_t> ticket = Run([&] { return groups_.Receive(update.tensors); });
  updates_.Post([this, update, ticket, done] {
    if (!ticket) {
      changes_.Failed(ticket.error());
      return done(base::Annotate(ticket.error(), "Failed to receive weights"));
    }
    const TensorUpdate tensors = {.ticket = *ticket,
                                  .route = "update_weights_from_distributed",
                                  .weight_version = update.weight_version,
                                  .flush_cache = update.flush_cache,
                                  .selector = update.selector};
    const Result<UpdateReport> report = Run([&]() -> Result<UpdateReport> {
      if (update.refusal.empty()) return changes_.FromTensors(tensors);
      changes_.Failed({Code::kInvalidArgument, update.refusal});
      return Fail(Code::kInvalidArgument, update.refusal);
    });
    if (!report) groups_.Forget(*ticket);
    done(report);
  });
}

void LiveWeights::Watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    wake.wait_for(lock, stop, options_.session_timeout / 4, [] { return false; });
    if (changes_.state().open) {
      updates_.Post([this] { changes_.Expire(options_.session_timeout); });
    }
  }
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

std::vector<std::string> LiveWeights::names() const {
  std::vector<std::string> names;
  for (const layout::TensorSpec& tensor : plan_.tensors()) names.push_back(tensor.name);
  return names;
}

}  // namespace

std::unique_ptr<Weights> Weights::Create(base::FileSystem& files, engine::Engine& engine,
                                         model::Model& model, Options options) {
  return std::make_unique<LiveWeights>(files, engine, model, std::move(options));
}

}  // namespace syncline::update
