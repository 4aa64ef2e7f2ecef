// Doubles of what stands behind the routes, and of a client, for tests.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/worker.h"
#include "engine/engine.h"
#include "http/server.h"
#include "text/tokenizer_process.h"
#include "update/weights.h"

namespace syncline::serve {

// Answers at once (token k of an answer is 100 + k, its text "<k>", its log-probability -k / 8),
// or, if `hold`, only when the test says what. Calls back on a thread of its own, as the real one.
class FakeEngine : public engine::Engine {
 public:
  void Stop(std::string) override {}
  base::Status Submit(engine::Request request, engine::Sink sink) override;
  void Abort(std::string id, AbortMatch match, std::string message) override;
  void Pause(engine::PauseMode mode, Done done) override;
  void Continue(Done done) override;
  void Flush(std::chrono::milliseconds wait, Done done) override;
  void Exclusive(ExclusiveOptions options, std::function<base::Status()> work, Done done) override;
  bool BetweenSteps(std::function<void()> work) override {
    thread_.Post(std::move(work));
    return true;
  }
  void SetHold(engine::Hold hold, std::string reason, Done done) override;
  void SetVersion(std::string label, Done done) override;
  engine::Stats stats() const override;
  std::uint32_t max_context() const override { return 64; }
  std::uint32_t vocabulary_size() const override { return 1000; }

  // For the test. All wait until what was called before has been done.
  void Emit(const std::string& id, const engine::Event& event);
  std::vector<engine::Request> requests();  // all that were submitted, in order
  std::vector<std::string> calls();         // the others, as text: "abort ID", "pause retract"…
  std::size_t running();                    // requests without a last event
  void SetStats(engine::Stats stats);

  bool hold = false;
  base::Status submit_status;  // of every Submit that follows
  std::string refused_id;      // Submit of it fails with kInvalidArgument
  base::Status flush_status;
  base::Status control_status;  // of pause, continue, set version

 private:
  void Answer(const engine::Request& request, const engine::Sink& sink);
  void Note(std::string call);
  void Sync();

  mutable std::mutex mutex_;
  std::vector<engine::Request> requests_;
  std::map<std::string, engine::Sink> running_;
  std::vector<std::string> calls_;
  engine::Stats stats_ = {.weight_version = "7", .alive = std::chrono::steady_clock::now()};
  base::Worker thread_;  // last
};

engine::Event LastEvent(engine::Finish finish, std::vector<engine::TokenId> tokens = {},
                        std::string text = "");

class FakeWeights : public update::Weights {
 public:
  explicit FakeWeights(FakeEngine& engine) : engine_(engine) {}
  void FromDisk(update::DiskUpdate update, Updated done) override;
  void Begin(update::BeginRequest request, std::function<void(base::Status)> done) override;
  void End(update::EndRequest request, Updated done) override;
  void FromTensors(update::TensorUpdate update, Updated done) override;
  void OpenSeed(update::SeedGroups groups,
                std::function<void(base::Result<std::vector<std::uint16_t>>)> done) override;
  void SendSeed(std::string name,
                std::function<void(base::Result<update::SeedReport>)> done) override;
  base::Status TakeSeed(update::SeedGroups,
                        const std::function<base::Result<update::SeedReport>()>&) override {
    return {};
  }
  std::string layout() const override { return "alike"; }
  base::Result<std::vector<update::WindowInfo>> Offer() override { return offered; }
  void JoinGroup(update::GroupRequest request, std::function<void(base::Status)> done) override;
  void LeaveGroup(std::string name, std::function<void(base::Status)> done) override;
  void FromGroup(update::GroupUpdate update, Updated done) override;
  void SetVersion(std::string label, std::function<void(base::Status)> done) override;
  update::SessionState session() const override;
  void ReleaseMemory(update::MemoryParts parts, std::function<void(base::Status)> done) override;
  void ResumeMemory(update::MemoryParts parts, std::function<void(base::Status)> done) override;
  void Check(update::CheckRequest request,
             std::function<void(base::Result<update::CheckReport>)> done) override;
  void Pull(update::PullRequest request,
            std::function<void(std::vector<update::HostPull>)> done) override;
  void Export(std::string name,
              std::function<void(base::Result<update::ExportedTensor>)> done) override;
  void Digests(update::DigestRequest request,
               std::function<void(base::Result<update::DigestReport>)> done) override;
  void Cancel() override {}
  std::vector<std::string> names() const override;
  std::string model_path() const override;

  // For the test. While `hold`, updates from disk and pulls wait; Finish ends them all.
  void Finish(const base::Status& status = {});
  // "update PATH LABEL FLUSH", "pull SOURCE INTO VERSION", "begin SELECTOR [adapters]",
  // "end [abort]", "tensors", "check", "join" and "group" (whose requests are below), "leave NAME",
  // "version LABEL", "release [kv_cache] [weights]" and "resume" the same.
  std::vector<std::string> calls();
  std::vector<update::TensorUpdate> tensor_updates();
  std::vector<update::CheckRequest> checks();
  std::vector<update::GroupRequest> joined_groups();
  std::vector<update::GroupUpdate> group_updates();
  void SetSession(update::SessionState session);

  // Begin opens the session and End closes it, where these are no errors.
  base::Status begun;
  base::Result<update::UpdateReport> ended;
  base::Status memory_changed;
  base::Result<update::UpdateReport> updated = update::UpdateReport{
      .tensors = 2, .skipped = 1, .bytes = 32, .stage_seconds = 0.5, .apply_seconds = 0.25};
  base::Status joined;  // of a group; and left
  base::Status left;
  base::Result<update::CheckReport> checked;
  bool hold = false;
  // That a pull reaches beside this one, and what it comes to there.
  std::vector<update::HostPull> other_hosts;
  base::Result<update::DigestReport> digests;
  std::vector<update::WindowInfo> offered;
  base::Result<std::vector<std::uint16_t>> seed_ports;
  base::Result<update::SeedReport> seeded;
  std::map<std::string, update::ExportedTensor> tensors;

 private:
  void ChangeMemory(std::string call, const update::MemoryParts& parts,
                    const std::function<void(base::Status)>& done);
  void EndDiskUpdate(const update::DiskUpdate& update, const Updated& done,
                     const base::Status& status);

  FakeEngine& engine_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::vector<update::TensorUpdate> tensor_updates_;
  std::vector<update::CheckRequest> checks_;
  std::vector<update::GroupRequest> joined_groups_;
  std::vector<update::GroupUpdate> group_updates_;
  update::SessionState session_;
  std::vector<std::function<void(const base::Status&)>> held_;
  std::string path_ = "/models/launch";
  base::Worker thread_;
};

// A token is a byte of the text. A chat's text is its messages as "role:content;" and is followed
// by "assistant:" where a prompt for an answer was asked for.
class FakeTokenizer : public text::TokenizerProcess {
 public:
  void Encode(std::vector<std::string> texts, bool add_special_tokens, Encoded done) override;
  void ApplyChatTemplate(base::Json messages, base::Json options, Prompted done) override;
  int pid() const override { return 0; }

  std::optional<base::Error> fault;  // instead of any answer
  std::shared_future<void> gate;     // where valid: no answer before it opens
  base::Json last_options;

 private:
  base::Worker thread_;
};

// What a client gets.
class FakeExchange : public http::Exchange {
 public:
  void Send(http::Response response) override;
  void BeginStream(int status, std::string content_type) override;
  void Write(std::string chunk) override;
  void End() override;
  void OnDisconnect(std::function<void()> callback) override;

  // For the test: waits for the whole reply. The body of a stream is all that was written.
  http::Response Wait();
  bool answered();
  std::string written();
  void Disconnect();
  // The data of the server-sent events so far.
  std::vector<std::string> events();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  http::Response response_;
  bool streaming_ = false;
  bool done_ = false;
  std::function<void()> disconnected_;
};

}  // namespace syncline::serve
