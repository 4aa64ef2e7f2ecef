// A fixed set of threads that share out the iterations of a loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"

namespace syncline::base {

// ParallelFor may be called by one thread at a time, not from inside an iteration. The calling
// thread works too, so a pool of size 1 has no thread of its own.
class ThreadPool {
 public:
  // threads: how many iterations run at once; 0 = one for each processor that this process may use.
  explicit ThreadPool(std::size_t threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return workers_.size() + 1; }

  // Calls body(i) for each i in [0, count), handed out in ascending order. After the first failure,
  // or once `cancel` is set, no further iteration starts. An iteration that runs out of
  // memory has failed with kLimitExceeded. Returns the error of the lowest failed
  // index that ran. All writes of the iterations are visible to the caller afterwards.
  Status ParallelFor(std::size_t count, const std::function<Status(std::size_t)>& body,
                     const CancelToken* cancel = nullptr);

 private:
  struct Loop;
  void Work();
  static void Run(Loop& loop);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Loop* loop_ = nullptr;  // guarded by mutex_
  std::size_t generation_ = 0;
  std::size_t busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

// Number of processors this process may run on, at least 1.
std::size_t AvailableProcessors();

}  // namespace syncline::base
