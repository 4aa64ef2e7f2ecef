#include "base/worker.h"

#include <fmt/format.h>

#include <exception>

#include "base/log.h"

namespace syncline::base {

Worker::Worker() : thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::Post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    if (stop_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Worker::Run() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception& error) {
      Log(LogLevel::kError, fmt::format("a task failed: {}", error.what()));
    }
  }
}

}  // namespace syncline::base
