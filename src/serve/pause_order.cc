// Protocol:
//   1. An update is counted in the last stage.
//   2. A change is put into the last stage, and a new one is begun behind it.
//   3. Whenever the first stage has no updates left, its changes are called and it goes, by one thread
//      at a time.
// Invariant: a change is called after all updates and changes that came before it, and waits for
// none that came after.
#include "serve/pause_order.h"

#include <iterator>
#include <utility>

namespace syncline::serve {

std::shared_ptr<void> PauseOrder::BeginUpdate() {
  const std::scoped_lock lock(mutex_);
  Stage* stage = &stages_.back();
  std::shared_ptr<void> token(static_cast<void*>(stage), [this](void* ended) {
    {
      const std::scoped_lock ending(mutex_);
      --static_cast<Stage*>(ended)->updates;
    }
    CallWhatMay();
  });
  ++stage->updates;
  return token;
}

void PauseOrder::AfterUpdates(std::function<void()> change) {
  {
    const std::scoped_lock lock(mutex_);
    stages_.back().changes.push_back(std::move(change));
    stages_.emplace_back();
  }
  CallWhatMay();
}

void PauseOrder::AfterChanges(std::function<void()> change) {
  {
    const std::scoped_lock lock(mutex_);
    if (stages_.size() > 1) {
      std::prev(stages_.end(), 2)->changes.push_back(std::move(change));
      return;
    }
  }
  change();
}

void PauseOrder::CallWhatMay() {
  std::unique_lock lock(mutex_);
  if (calling_) return;  // whoever does looks again
  calling_ = true;
  while (stages_.size() > 1 && stages_.front().updates == 0) {
    // It stays until they were called, so that others put theirs behind them.
    const std::vector<std::function<void()>> changes = std::exchange(stages_.front().changes, {});
    lock.unlock();
    for (const auto& change : changes) change();
    lock.lock();
    if (stages_.front().changes.empty()) stages_.pop_front();
  }
  calling_ = false;
}

}  // namespace syncline::serve
