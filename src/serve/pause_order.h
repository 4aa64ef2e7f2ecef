// The order of weight updates and of pauses: an update that begins while generation is paused has
// ended before a continue that comes after it takes effect, and so before what was gated runs.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace syncline::serve {

// Thread-safe. Must outlive its tokens.
class PauseOrder {
 public:
  // An update begins. It ends when the last copy of the token is gone.
  std::shared_ptr<void> BeginUpdate();

  // Calls `change` once the updates that have begun are done and earlier changes were called: at
  // once, or on the thread where the last of them ends. It must not throw.
  void AfterUpdates(std::function<void()> change);

  // Calls `change` after those that wait; at once if none does.
  void AfterChanges(std::function<void()> change);

 private:
  // Updates, and the changes that wait for them. Only the last stage takes updates.
  struct Stage {
    std::size_t updates = 0;
    std::vector<std::function<void()>> changes;
  };

  void CallWhatMay();

  std::mutex mutex_;
  std::list<Stage> stages_ = std::list<Stage>(1);  // guarded by mutex_; at least one
  bool calling_ = false;                           // guarded by mutex_
};

}  // namespace syncline::serve
