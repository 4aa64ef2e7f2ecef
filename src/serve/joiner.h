// Requests for the same thing at the same time share one piece of work and its outcome.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace syncline::serve {

// Thread-safe.
template <typename Value>
class Joiner {
 public:
  // `joined`: the work was begun by another request.
  using Done = std::function<void(const base::Result<Value>&, bool joined)>;
  using Finish = std::function<void(base::Result<Value>)>;

  // Calls `start` with what is to be called, once, when the work has ended; or, while work of the
  // same key goes on, waits for that. `done` is called from where the work ends.
  void Run(const std::string& key, Done done, const std::function<void(Finish)>& start) {
    {
      const std::scoped_lock lock(mutex_);
      const auto [found, first] = waiting_.try_emplace(key);
      found->second.push_back(std::move(done));
      if (!first) return;
    }
    start([this, key](const base::Result<Value>& result) {
      bool joined = false;
      for (const Done& waiter : Take(key)) {
        waiter(result, joined);
        joined = true;
      }
    });
  }

 private:
  std::vector<Done> Take(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    auto taken = waiting_.extract(key);
    return taken.empty() ? std::vector<Done>() : std::move(taken.mapped());
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<Done>> waiting_;  // guarded by mutex_
};

}  // namespace syncline::serve
