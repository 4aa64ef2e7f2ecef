#include "replica/overlapping_progress.h"

namespace syncline::replica {

OverlappingProgress::OverlappingProgress(base::Progress& shown)
    : shown_(shown),
      first_([this](std::string_view phase, std::uint64_t done, std::uint64_t total) {
        const std::scoped_lock lock(mutex_);
        if (first_ended_) return;
        Show({phase, done, total});
        first_ended_ = done >= total;
      }),
      second_([this](std::string_view phase, std::uint64_t done, std::uint64_t total) {
        const std::scoped_lock lock(mutex_);
        if (first_ended_) Show({phase, done, total});
      }) {}

void OverlappingProgress::EndFirst() {
  const std::scoped_lock lock(mutex_);
  first_ended_ = true;
}

// Steps may come in another order than they were made in: what is shown only grows. A phase that
// begins anew is known by its 0.
void OverlappingProgress::Show(const State& state) {
  const bool begins = !showing_ || showing_->phase != state.phase ||
                      showing_->total != state.total || state.done == 0;
  if (begins) shown_.Begin(state.phase, state.total);
  const std::uint64_t before = begins ? 0 : showing_->done;
  if (!begins && state.done <= before) return;
  showing_ = state;
  if (state.done > before) shown_.Add(state.done - before);
}

}  // namespace syncline::replica
