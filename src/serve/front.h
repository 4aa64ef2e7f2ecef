// What all routes share: the state of the server, the engine behind it, and the worker thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/worker.h"
#include "engine/engine.h"
#include "layout/shard.h"
#include "serve/engine_info.h"
#include "serve/joiner.h"
#include "serve/meters.h"
#include "serve/path_rules.h"
#include "serve/pause_order.h"
#include "text/tokenizer_process.h"
#include "text/vocabulary.h"
#include "update/weights.h"

namespace syncline::serve {

// How the engine is divided among its ranks. Of the shard all but its rank counts.
struct Parallelism {
  layout::Shard shard;
  std::uint32_t ranks_on_each_host = 1;
};

// What is known of the model and of how the server was started.
struct ModelCard {
  std::string served_name;
  std::string tokenizer_path;
  std::string model_type;
  std::vector<std::string> architectures;
  base::Json arguments = base::Json(base::Json::Object{});  // an object: start-up options by name
  std::string software_version;
  std::vector<std::string> device_uuids;  // by rank
  Parallelism parallelism;
  // For engines that start from this one.
  std::string fingerprint;
  std::vector<std::pair<std::string, tensor::Dtype>> dtypes;  // of checkpoint tensors
};

// All must outlive the last request. `tokenizer` may be null.
struct Backend {
  engine::Engine* engine = nullptr;
  update::Weights* weights = nullptr;
  text::TokenizerProcess* tokenizer = nullptr;
  const text::Vocabulary* vocabulary = nullptr;
};

// The last update from disk that succeeded and carried a label, if nothing else has changed the
// weights since.
struct LoadedVersion {
  std::string path;
  std::string label;
  std::string fingerprint;
};

// Thread-safe, except where said.
class Front {
 public:
  // kFailed: a rank of the engine is gone; the process will end.
  enum class State { kStarting, kReady, kStopping, kFailed };

  explicit Front(base::MetricsRegistry& metrics);

  State state() const { return state_.load(std::memory_order_acquire); }
  // Once. The routes that need the model answer from then on.
  void SetReady(const Backend& backend, ModelCard card);
  // Requests that come from then on are refused.
  void BeginStopping();

  // The engine is gone for good, for that reason: requests that come from then on are refused with
  // it. The first reason counts.
  void Fail(base::Error reason);
  std::optional<base::Error> failure() const;

  // Has SetReady been called? What follows may be used only then.
  bool has_backend() const { return has_backend_.load(std::memory_order_acquire); }
  engine::Engine& engine() const { return *backend_.engine; }
  update::Weights& weights() const { return *backend_.weights; }
  text::TokenizerProcess* tokenizer() const { return backend_.tokenizer; }
  const text::Vocabulary& vocabulary() const { return *backend_.vocabulary; }
  const ModelCard& card() const { return card_; }

  base::Worker& worker() { return worker_; }
  // For calls that may wait for a file system, and for large bodies.
  base::Worker& disk_worker() { return disk_worker_; }
  Meters& meters() { return meters_; }
  std::chrono::system_clock::time_point started() const { return started_; }

  // 32 hexadecimal digits that no other request has.
  std::string NewId();

  // Waits until both workers have done what was posted before.
  void Drain();

  // Requests that are not answered yet.
  std::size_t open_requests() const { return open_requests_.load(std::memory_order_relaxed); }
  void AddOpenRequest(int change) {
    open_requests_.fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
  }

  PauseOrder pause_order;

  void NotePause();
  void NoteContinue();

  PathRules paths;  // of requests; set before the first one

  Joiner<update::UpdateReport> joined_updates;
  Joiner<std::vector<update::HostPull>> joined_pulls;

  EngineInfo engine_info;

  // The weights have been changed in another way than by an update from disk.
  void NoteChange();
  std::uint64_t changes() const;
  std::optional<LoadedVersion> loaded() const;
  // Nothing is remembered if the weights have been changed since changes() was `since`: of two
  // changes at the same time it is not known which came first.
  void SetLoaded(std::optional<LoadedVersion> loaded, std::uint64_t since);

  // Engine requests that one request id of a client stands for. Worker thread only.
  std::map<std::string, std::vector<std::string>> groups;

 private:
  std::atomic<State> state_ = State::kStarting;
  std::atomic<bool> has_backend_ = false;
  Backend backend_;
  ModelCard card_;
  Meters meters_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  const std::uint64_t id_prefix_;
  std::atomic<std::uint64_t> next_id_ = 0;
  std::atomic<std::size_t> open_requests_ = 0;
  mutable std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> paused_since_;  // guarded by mutex_
  std::optional<LoadedVersion> loaded_;                                // guarded by mutex_
  std::uint64_t changes_ = 0;                                          // guarded by mutex_
  std::optional<base::Error> failure_;                                 // guarded by mutex_
  base::Worker worker_;  // last: tasks use what stands above
  base::Worker disk_worker_;
};

}  // namespace syncline::serve
