#include "engine/scheduler.h"

#include <algorithm>

namespace syncline::engine {
namespace {

std::uint32_t BlocksFor(std::uint32_t tokens) {
  return (tokens + model::kKvBlock - 1) / model::kKvBlock;
}

}  // namespace

Step Scheduler::Plan() {
  Step step;
  PlanDecoding(step);
  PlanPrompts(step);
  return step;
}

void Scheduler::PlanDecoding(Step& step) {
  for (std::size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) {
      ++i;
      continue;
    }
    if (!blocks_.Grow(sequence.blocks, BlocksFor(sequence.computed + 1))) {
      // May take this very one: then the loop ends, since it was the youngest.
      RetractYoungest();
      continue;
    }
    AddRows(step, sequence, 1);
    ++i;
  }
}

void Scheduler::PlanPrompts(Step& step) {
  std::uint32_t rows = limits_.prefill_rows;
  std::uint32_t logprob_rows = limits_.logprob_rows;
  const auto add = [&](Sequence& sequence) {
    const std::uint32_t length =
        BoundByLogprobs(sequence, std::min(sequence.remaining(), rows), logprob_rows);
    if (length == 0) return false;
    const Sequence::Range range = sequence.InputLogprobRows(length);
    AddRows(step, sequence, length);
    rows -= length;
    logprob_rows -= range.last - range.first;
    return true;
  };
  for (const auto& sequence : running_) {
    if (rows == 0) return;
    if (!sequence->decoding()) add(*sequence);
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (rows == 0 || logprob_rows == 0 || running_.size() >= limits_.max_running) return;
    const Admission admission = Admit(**it);
    if (admission == Admission::kTooFewBlocks) return;
    if (admission == Admission::kLater) {
      ++it;
      continue;
    }
    running_.push_back(std::move(*it));
    it = waiting_.erase(it);
    add(*running_.back());
  }
}

// Will a running sequence publish the block with that key, the `place`th of a sequence?
bool Scheduler::IsBeingComputed(const BlockKey& key, std::size_t place) {
  return std::ranges::any_of(running_, [&](const std::unique_ptr<Sequence>& sequence) {
    if (!sequence->keys || sequence->keys->epoch() != epoch_) return false;
    if (place < sequence->published || sequence->decoding()) return false;
    const auto keys = sequence->keys->Of(sequence->tokens());
    return place < keys.size() && keys[place] == key;
  });
}

// Gives it blocks for its whole context, with what it finds in the cache.
Scheduler::Admission Scheduler::Admit(Sequence& sequence) {
  if (limits_.share_prefixes) {
    if (!sequence.keys || sequence.keys->epoch() != epoch_) {
      sequence.keys.emplace(epoch_, sequence.request().cache_partition);
    }
    const auto keys = sequence.keys->Of(std::span(sequence.tokens()).first(sequence.reusable()));
    sequence.blocks = blocks_.Find(keys);
    const std::size_t place = sequence.blocks.size();
    if (place < keys.size() && IsBeingComputed(keys[place], place)) {
      blocks_.Release(sequence.blocks);
      return Admission::kLater;
    }
  }
  const auto found = static_cast<std::uint32_t>(sequence.blocks.size());
  const std::uint32_t needed = BlocksFor(static_cast<std::uint32_t>(sequence.tokens().size()));
  // One block more for each that runs, so that admission does not lead to retraction at once.
  if (blocks_.free() < needed - found + running_.size()) {
    blocks_.Release(sequence.blocks);
    return Admission::kTooFewBlocks;
  }
  std::vector<VersionSpan> spans;
  for (const std::uint32_t block : sequence.blocks) {
    for (const VersionSpan& span : blocks_.spans(block)) ExtendSpans(spans, span.end, span.version);
  }
  sequence.Reuse(found * model::kKvBlock, std::move(spans));
  sequence.published = found;
  reused_tokens_ += sequence.computed;
  blocks_.Grow(sequence.blocks, needed);
  return Admission::kAdmitted;
}

void Scheduler::Publish(Sequence& sequence) {
  if (!sequence.keys || sequence.keys->epoch() != epoch_) return;
  const std::uint32_t full = sequence.computed / model::kKvBlock;
  if (full == sequence.published) return;
  const auto keys = sequence.keys->Of(std::span(sequence.tokens()).first(sequence.computed));
  for (std::uint32_t& i = sequence.published; i < full; ++i) {
    blocks_.Publish(sequence.blocks[i], keys[i],
                    sequence.ComputedBy(i * model::kKvBlock, (i + 1) * model::kKvBlock));
  }
}

void Scheduler::WeightsChanged() {
  if (limits_.share_across_weights) return;
  ++epoch_;
  blocks_.Forget();  // nobody will look for it
}

void Scheduler::Release(Sequence& sequence) {
  blocks_.Release(sequence.blocks);
  sequence.published = 0;
}

// The longest start of `length` tokens whose input log-probabilities need at most `rows_left` rows
// of logits.
std::uint32_t Scheduler::BoundByLogprobs(const Sequence& sequence, std::uint32_t length,
                                         std::uint32_t rows_left) const {
  const Sequence::Range range = sequence.InputLogprobRows(length);
  if (range.last - range.first <= rows_left) return length;
  return range.first + rows_left - sequence.computed;
}

void Scheduler::AddRows(Step& step, Sequence& sequence, std::uint32_t length) {
  const auto begin = static_cast<std::uint32_t>(step.batch.tokens.size());
  const auto& tokens = sequence.tokens();
  if (sequence.request().experts_from) step.batch.experts = true;
  step.batch.tokens.insert(step.batch.tokens.end(), tokens.begin() + sequence.computed,
                           tokens.begin() + sequence.computed + length);
  step.batch.sequences.push_back({.begin = begin,
                                  .length = length,
                                  .context = sequence.computed + length,
                                  .blocks = sequence.blocks});
  Work work = {.sequence = &sequence,
               .length = length,
               .input_logprobs = sequence.InputLogprobRows(length),
               .choose = length == sequence.remaining() && !sequence.NeedsNoOutput(),
               .first_logits_row = static_cast<std::uint32_t>(step.batch.logits_rows.size())};
  for (std::uint32_t i = work.input_logprobs.first; i < work.input_logprobs.last; ++i) {
    step.batch.logits_rows.push_back(begin + i - sequence.computed);
  }
  if (work.choose) step.batch.logits_rows.push_back(begin + length - 1);
  step.work.push_back(work);
}

void Scheduler::RetractYoungest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  Release(*sequence);
  sequence->Retract();
  waiting_.push_front(std::move(sequence));
}

void Scheduler::RetractAll() {
  while (!running_.empty()) RetractYoungest();
}

void Scheduler::Remove(const Sequence* sequence) {
  const auto found = std::ranges::find(running_, sequence, &std::unique_ptr<Sequence>::get);
  Release(**found);
  running_.erase(found);
}

std::vector<std::unique_ptr<Sequence>> Scheduler::Take(
    const std::function<bool(const Sequence&)>& chosen) {
  std::vector<std::unique_ptr<Sequence>> taken;
  const auto take = [&](auto& from) {
    for (auto it = from.begin(); it != from.end();) {
      if (!chosen(**it)) {
        ++it;
        continue;
      }
      Release(**it);
      taken.push_back(std::move(*it));
      it = from.erase(it);
    }
  };
  take(running_);
  take(waiting_);
  return taken;
}

}  // namespace syncline::engine
