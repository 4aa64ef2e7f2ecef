// Which requests are computed in the next step. Owns the sequences that are waiting or running, and
// the cache blocks.
//
// 1. Running sequences that decode get one row each; where a block is missing, the youngest running
//    sequence is retracted.
// 2. Running sequences with a prompt (or, after a retraction, with earlier output) to compute get
//    rows up to the step's limit, the oldest first.
// 3. Waiting sequences are admitted, in order, while what their whole context needs beyond the
//    blocks of a beginning that lies in the cache, and one block more, fits, and rows are left. One
//    of which the next block is being computed for another sequence is passed over until then: so
//    the samples of one prompt compute it once.
// 4. After the step, blocks that are full are published, so that later sequences with the same
//    beginning find them.
// Invariants: each running sequence holds blocks for all tokens that are computed or in the step; a
// waiting one holds none. One sequence alone always fits, since its context is bounded by the
// cache. Rows are never written to a block that another sequence holds: only full blocks are
// published. What was computed before WeightsChanged is not found after it: keys have the epoch,
// and a sequence that runs through the change publishes no more.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/kv_blocks.h"
#include "engine/sequence.h"
#include "model/batch.h"

namespace syncline::engine {

struct SchedulerLimits {
  std::uint32_t max_running = 256;
  std::uint32_t prefill_rows = 512;  // prompt tokens in one step
  // Rows of a step whose logits are read for input log-probabilities
  std::uint32_t logprob_rows = 128;
  bool share_prefixes = true;
  bool share_across_weights = false;  // WeightsChanged changes nothing
};

// What one sequence does in a step.
struct Work {
  Sequence* sequence = nullptr;
  std::uint32_t length = 0;            // tokens computed
  Sequence::Range input_logprobs;      // positions; their logits come first
  bool choose = false;                 // the last row's logits are asked for
  std::uint32_t first_logits_row = 0;  // index into Batch::logits_rows
};

struct Step {
  model::Batch batch;
  std::vector<Work> work;
};

class Scheduler {
 public:
  Scheduler(std::uint32_t blocks, SchedulerLimits limits) : blocks_(blocks), limits_(limits) {}

  void Add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  // Nothing to do: an empty step.
  Step Plan();

  // The sequence is finished and leaves; its last event was sent.
  void Remove(const Sequence* sequence);
  // Takes out all that `chosen` says, running and waiting, in order of age.
  std::vector<std::unique_ptr<Sequence>> Take(const std::function<bool(const Sequence&)>& chosen);
  // All running sequences go back to the front of those waiting.
  void RetractAll();

  // The sequence's part of a step is in the cache (Sequence::Advance).
  void Publish(Sequence& sequence);
  // What was computed so far is reused by nobody else.
  void WeightsChanged();
  void Forget() { blocks_.Forget(); }

  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  bool empty() const { return running_.empty() && waiting_.empty(); }
  std::uint32_t blocks_used() const { return blocks_.total() - blocks_.free(); }
  std::uint32_t blocks_total() const { return blocks_.total(); }
  // Tokens that were found in the cache by sequences that began, since the start.
  std::uint64_t reused_tokens() const { return reused_tokens_; }

 private:
  // kLater: what it lacks is being computed for another sequence.
  enum class Admission { kAdmitted, kLater, kTooFewBlocks };
  Admission Admit(Sequence& sequence);
  bool IsBeingComputed(const BlockKey& key, std::size_t place);
  void Release(Sequence& sequence);
  void RetractYoungest();
  void AddRows(Step& step, Sequence& sequence, std::uint32_t length);
  std::uint32_t BoundByLogprobs(const Sequence& sequence, std::uint32_t length,
                                std::uint32_t rows_left) const;
  void PlanDecoding(Step& step);
  void PlanPrompts(Step& step);

  KvBlocks blocks_;
  SchedulerLimits limits_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::uint64_t epoch_ = 0;  // of the weights
  std::uint64_t reused_tokens_ = 0;
};

}  // namespace syncline::engine
