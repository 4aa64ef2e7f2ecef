#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace syncline::engine {
namespace {

using model::kKvBlock;

// Runs the scheduler with random requests; `ended` counts those that finished.
class Run {
 public:
  Run(std::uint32_t blocks, SchedulerLimits limits) : limits_(limits), scheduler_(blocks, limits) {}

  // Prompts of the same `kind` begin alike.
  void Add(std::uint32_t prompt, std::uint32_t output, bool logprobs, int kind) {
    Request request;
    request.id = std::to_string(added_++);
    request.input_ids.assign(prompt, kind);
    request.sampling.max_new_tokens = output;
    request.logprobs = {.enabled = logprobs, .start = logprobs ? 0 : -1};
    scheduler_.Add(std::make_unique<Sequence>(
        std::move(request), [this](Event event) { ended_ += event.finish ? 1 : 0; }, vocabulary_,
        std::span<const TokenId>(), 0));
  }

  // Checks the step against the invariants and does what the engine does with it. False for an
  // empty step.
  bool Compute() {
    Step step = scheduler_.Plan();
    if (step.work.empty()) return false;
    CheckRows(step);
    std::uint32_t logits_row = 0;
    for (const Work& work : step.work) {
      RC_ASSERT(work.first_logits_row == logits_row);
      logits_row += work.input_logprobs.last - work.input_logprobs.first + (work.choose ? 1 : 0);
      Finish(work);
    }
    RC_ASSERT(step.batch.logits_rows.size() == logits_row);
    return true;
  }

  Scheduler& scheduler() { return scheduler_; }
  std::size_t added() const { return added_; }
  std::size_t ended() const { return ended_; }

 private:
  void CheckRows(const Step& step) {
    std::uint32_t row = 0;
    std::uint32_t prompt_rows = 0;
    std::uint32_t logprob_rows = 0;
    std::map<std::uint32_t, std::uint32_t> holders;
    for (const model::SequenceSlice& slice : step.batch.sequences) {
      for (const std::uint32_t block : slice.blocks) ++holders[block];
    }
    for (std::size_t i = 0; i < step.work.size(); ++i) {
      const model::SequenceSlice& slice = step.batch.sequences[i];
      RC_ASSERT(slice.begin == row);
      row += slice.length;
      RC_ASSERT(slice.blocks.size() * kKvBlock >= slice.context);
      const std::uint32_t first = slice.context - slice.length;
      for (std::uint32_t k = first / kKvBlock; k < slice.blocks.size(); ++k) {
        RC_ASSERT(holders[slice.blocks[k]] == 1U);  // what is written is nobody else's
      }
      const Work& work = step.work[i];
      if (!work.sequence->decoding()) prompt_rows += work.length;
      logprob_rows += work.input_logprobs.last - work.input_logprobs.first;
    }
    RC_ASSERT(step.batch.tokens.size() == row);
    RC_ASSERT(prompt_rows <= limits_.prefill_rows);
    RC_ASSERT(logprob_rows <= limits_.logprob_rows);
    RC_ASSERT(step.work.size() <= limits_.max_running);
  }

  void Finish(const Work& work) {
    std::vector<float> logits(8, 0.0F);
    for (std::uint32_t i = work.input_logprobs.first; i < work.input_logprobs.last; ++i) {
      work.sequence->AddInputLogprob(i, logits);
    }
    work.sequence->Advance(work.length, "v");
    scheduler_.Publish(*work.sequence);
    bool ended = false;
    if (work.choose) {
      ended = work.sequence->Generate(logits, "v");
    } else if (work.sequence->remaining() == 0) {
      work.sequence->End({}, "v");
      ended = true;
    }
    if (ended) scheduler_.Remove(work.sequence);
  }

  text::Vocabulary vocabulary_;
  SchedulerLimits limits_;
  Scheduler scheduler_;
  std::size_t added_ = 0;
  std::size_t ended_ = 0;
};

RC_GTEST_PROP(Scheduler, EverythingEndsAndNoBlockIsWrittenThatAnotherHolds, ()) {
  const auto blocks = *rc::gen::inRange<std::uint32_t>(2, 30);
  Run run(blocks, {.max_running = *rc::gen::inRange<std::uint32_t>(1, 12),
                   .prefill_rows = *rc::gen::inRange<std::uint32_t>(1, 64),
                   .logprob_rows = *rc::gen::inRange<std::uint32_t>(1, 32),
                   .share_prefixes = *rc::gen::arbitrary<bool>()});
  const std::uint32_t context = blocks * kKvBlock;
  const int rounds = *rc::gen::inRange(1, 30);
  for (int i = 0; i < rounds; ++i) {
    const auto prompt = *rc::gen::inRange<std::uint32_t>(1, context);
    const auto output = *rc::gen::inRange<std::uint32_t>(0, context - prompt + 1);
    run.Add(prompt, output, *rc::gen::arbitrary<bool>(), *rc::gen::inRange(0, 3));
    if (*rc::gen::inRange(0, 6) == 0) run.scheduler().RetractAll();
    if (*rc::gen::inRange(0, 8) == 0) run.scheduler().WeightsChanged();
    if (*rc::gen::inRange(0, 8) == 0) run.scheduler().Forget();
    for (int k = *rc::gen::inRange(0, 4); k > 0; --k) run.Compute();
  }
  // Each step brings something: far more steps than tokens means that it stands still.
  for (int i = 0; i < 200000 && run.Compute(); ++i) {
  }
  RC_ASSERT(run.scheduler().empty());
  RC_ASSERT(run.ended() == run.added());
  RC_ASSERT(run.scheduler().blocks_used() == 0U);
}

}  // namespace
}  // namespace syncline::engine
