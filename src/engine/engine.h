// The engine: one thread that batches requests, runs the model step by step, and between two steps
// does what it is told.
//
// Everything that is asked of the engine goes through one queue and is done in its order, between
// two forward passes, on the engine's thread. So there are no locks around the weights: a command
// sees no forward running.
//
// States of a request: gated (came while generation was paused or an exclusive command was waiting)
// → waiting (for memory) → running → finished. A running request can be retracted: it loses its
// KV memory, goes back to waiting, and is computed again from its prompt and its output so far.
//
// Exclusive commands (weight updates):
//   paused      they run at once; requests that stay resident (`in_place`) do not hold them up.
//   not paused  admission closes, running and waiting requests finish first, and those that come
//               meanwhile are gated. A pause that arrives while a command waits lets it run.
//
// The prefix cache: requests share the keys and values of a beginning that they have in common. Only
// what the same weights computed is shared: after an exclusive command, and whenever the engine is
// held or released, requests find nothing of what was computed before; a new label alone (SetVersion)
// changes no weights.
//
// A held engine (while weights are written in place, or memory is given back) computes nothing,
// paused or not, and gates what comes, or refuses it. It is held and released by who changes the
// weights, pauses are not his.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "text/vocabulary.h"

namespace syncline::model {
class Model;
}

namespace syncline::engine {

struct EngineOptions {
  // Of this rank. 0: a quarter of what the machine has free, divided among its ranks, at most 4 GiB
  std::uint64_t kv_cache_bytes = 0;
  std::uint32_t ranks_here = 1;        // of the engine, on this machine
  std::uint32_t max_running = 256;     // requests computed in one step
  std::uint32_t prefill_tokens = 512;  // prompt tokens computed in one step
  std::uint32_t max_context = 0;       // 0: what the model was made for, bounded by the KV cache
  std::uint64_t seed = 0;              // of requests that bring none
  std::uint32_t max_queued = 0;        // requests that wait for their turn; 0: no limit
  bool prefix_cache = true;            // requests share what is computed of the same beginning
  // Also what other weights computed, unless it is flushed. Spans of versions say so.
  bool prefix_cache_across_versions = false;
};

enum class PauseMode { kAbort, kRetract, kInPlace };
// kWait: what comes is gated. kShut: it is refused, and what came before waits. kRefuse: that is
// ended too.
enum class Hold { kNone, kWait, kShut, kRefuse };
// The memory of the key-value cache, on all ranks.
enum class KvMemory { kRelease, kTake };

struct Stats {
  bool paused = false;
  Hold hold = Hold::kNone;
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint32_t gated = 0;
  std::uint64_t kv_tokens_used = 0;
  std::uint64_t kv_tokens_total = 0;
  std::uint64_t prompt_tokens = 0;     // computed since the start
  std::uint64_t cached_tokens = 0;     // found in the prefix cache since the start
  std::uint64_t generated_tokens = 0;  // since the start
  double tokens_per_second = 0;        // generated, over the last ten seconds
  std::uint64_t steps = 0;             // computed since the start
  double step_seconds = 0;             // that they took
  double collective_seconds = 0;       // of that, in sums over ranks, waiting included
  std::string weight_version;
  std::chrono::steady_clock::time_point alive;  // the last time the engine's thread came by
};

// What Exclusive answers where it would flush and so many requests hold memory, paused in place.
base::Status FlushRefused(std::uint32_t resident);

class Engine {
 public:
  // `model` and `vocabulary` must outlive it. `end_tokens`: what ends a text (unless ignore_eos).
  static base::Result<std::unique_ptr<Engine>> Start(const EngineOptions& options,
                                                     model::Model& model,
                                                     const text::Vocabulary& vocabulary,
                                                     std::vector<TokenId> end_tokens,
                                                     std::string weight_version);
  virtual ~Engine() = default;  // Stop()

  // Aborts what is left with status 503 and ends the thread. From its start on every call is
  // refused with kUnavailable. `reason` is what clients are told; that of the first call counts.
  virtual void Stop(std::string reason) = 0;
  void Stop() { Stop("the engine is shutting down"); }

  // All methods are thread-safe, return at once, and call back on the engine's thread (callbacks
  // must not block). After the start of Stop() `done` is called with kUnavailable, on the caller's
  // thread.

  // Checks the request and queues it. kInvalidArgument (nothing is queued and the sink is never
  // called) names the field; kAlreadyExists for an id in use; kLimitExceeded while max_queued
  // requests wait, for whatever reason; kUnavailable after the start of Stop().
  virtual base::Status Submit(Request request, Sink sink) = 0;

  // Ends requests with Finish::kAbort: that id, those whose id starts with it, or all, gated ones
  // included.
  enum class AbortMatch { kExact, kPrefix, kAll };
  virtual void Abort(std::string id, AbortMatch match, std::string message) = 0;

  using Done = std::function<void(base::Status)>;

  // kAbort: aborts all that is running or waiting, and gates what comes; `done` once it is drained.
  // kRetract: running requests go back to waiting. kInPlace: they keep their memory. Pausing twice
  // is fine: the stronger effect (abort, then retract) happens.
  virtual void Pause(PauseMode mode, Done done) = 0;
  virtual void Continue(Done done) = 0;

  // Forgets all KV memory. Fails with kOutOfOrder while requests hold any, and, if not paused,
  // while any is running or waiting; waits up to `wait` for that to end. One at a time: kLocked for
  // a second one that would wait.
  virtual void Flush(std::chrono::milliseconds wait, Done done) = 0;

  // Runs `work` on the engine's thread under the rules above, then, if it succeeded and `label` is
  // given, changes the label in the same instant. With `flush`, requests that hold KV memory
  // (paused in place) make it fail with kOutOfOrder before `work` is run.
  struct ExclusiveOptions {
    bool flush = false;
    std::optional<std::string> label;
    std::optional<Hold> hold;  // if it succeeded, in the same instant
    // Done before `work`, which is not run if it fails. Nothing may be computed between a release
    // and the next kTake; a kTake that fails leaves it released. With `flush` or an idle engine.
    std::optional<KvMemory> kv;
    // Fails with kOutOfOrder, where Flush would, instead of waiting for requests to end.
    bool idle = false;
  };
  virtual void Exclusive(ExclusiveOptions options, std::function<base::Status()> work,
                         Done done) = 0;

  // Holds or releases the engine between two steps. kRefuse ends what was submitted with status 503
  // and `reason`, and Submit refuses with it from then on, as with kShut.
  virtual void SetHold(Hold hold, std::string reason, Done done) = 0;

  // Runs `work` between two steps, whatever state the engine is in: for reading the weights. False,
  // and it is not run, after the start of Stop().
  virtual bool BetweenSteps(std::function<void()> work) = 0;

  virtual void SetVersion(std::string label, Done done) = 0;

  virtual Stats stats() const = 0;
  virtual std::uint32_t max_context() const = 0;      // prompt and output together
  virtual std::uint32_t vocabulary_size() const = 0;  // of the model
};

}  // namespace syncline::engine
