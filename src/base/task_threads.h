// Tasks that may wait long for others, each on a thread of its own.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace syncline::base {

// Thread-safe.
class TaskThreads {
 public:
  TaskThreads() = default;
  // Waits for all tasks.
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // An exception that leaves a task is logged. Where the system gives no thread, the caller runs it.
  void Run(const std::function<void()>& task);

 private:
  struct Task {
    bool done = false;  // guarded by mutex_
    std::thread thread;
  };
  void Reap();

  std::mutex mutex_;
  std::list<Task> tasks_;  // guarded by mutex_
};

}  // namespace syncline::base
