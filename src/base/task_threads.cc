#include "base/task_threads.h"

#include <fmt/core.h>

#include <exception>
#include <system_error>

#include "base/log.h"

namespace syncline::base {
namespace {

void RunLogged(const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, fmt::format("a task failed: {}", error.what()));
  }
}

}  // namespace

TaskThreads::~TaskThreads() {
  // Tasks may start others until they end.
  while (true) {
    std::list<Task> left;
    {
      const std::scoped_lock lock(mutex_);
      if (tasks_.empty()) return;
      left.splice(left.end(), tasks_, tasks_.begin());
    }
    left.front().thread.join();
  }
}

// Those that are done only have to be joined.
void TaskThreads::Reap() {
  std::erase_if(tasks_, [](Task& task) {
    if (task.done) task.thread.join();
    return task.done;
  });
}

void TaskThreads::Run(const std::function<void()>& task) {
  {
    const std::scoped_lock lock(mutex_);
    Reap();
    Task& added = tasks_.emplace_back();
    try {
      added.thread = std::thread([this, &added, task] {
        RunLogged(task);
        const std::scoped_lock finished(mutex_);
        added.done = true;
      });
      return;
    } catch (const std::system_error&) {
      tasks_.pop_back();
    }
  }
  RunLogged(task);
}

}  // namespace syncline::base
