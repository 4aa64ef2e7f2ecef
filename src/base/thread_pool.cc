#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <optional>

namespace syncline::base {

struct ThreadPool::Loop {
  std::size_t count;
  const std::function<Status(std::size_t)>* body;
  const CancelToken* cancel;
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::size_t error_index = std::numeric_limits<std::size_t>::max();  // guarded by mutex
  std::optional<Error> error;                                         // guarded by mutex

  void Record(std::size_t index, Error what) {
    const std::scoped_lock lock(mutex);
    failed.store(true, std::memory_order_relaxed);
    if (error && index >= error_index) return;
    error_index = index;
    error = std::move(what);
  }
};

std::size_t AvailableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return static_cast<std::size_t>(std::max(CPU_COUNT(&set), 1));
  }
  return std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
}

ThreadPool::ThreadPool(std::size_t threads) {
  if (threads == 0) threads = AvailableProcessors();
  for (std::size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Work() {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || (loop_ != nullptr && generation_ != seen); });
    if (stop_) return;
    seen = generation_;
    Loop* loop = loop_;
    ++busy_;
    lock.unlock();
    Run(*loop);
    lock.lock();
    if (--busy_ == 0) done_.notify_all();
  }
}

void ThreadPool::Run(Loop& loop) {
  while (!loop.failed.load(std::memory_order_relaxed)) {
    const std::size_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop.count) return;
    if (loop.cancel != nullptr) {
      if (Status status = loop.cancel->Check(); !status) {
        loop.Record(index, std::move(status).error());
        return;
      }
    }
    try {
      if (Status status = (*loop.body)(index); !status) {
        loop.Record(index, std::move(status).error());
      }
    } catch (const std::bad_alloc&) {  // on a thread of the pool nobody else could catch it
      loop.Record(index, {Code::kLimitExceeded, "out of memory"});
    }
  }
}

Status ThreadPool::ParallelFor(std::size_t count, const std::function<Status(std::size_t)>& body,
                               const CancelToken* cancel) {
  Loop loop{.count = count, .body = &body, .cancel = cancel, .mutex = {}, .error = {}};
  const bool shared = count > 1 && !workers_.empty();
  if (shared) {
    {
      const std::scoped_lock lock(mutex_);
      loop_ = &loop;
      ++generation_;
    }
    wake_.notify_all();
  }
  Run(loop);
  if (shared) {
    // A worker that has not picked the loop up yet no longer can once loop_ is null; the others are
    // counted in busy_.
    std::unique_lock lock(mutex_);
    loop_ = nullptr;
    done_.wait(lock, [&] { return busy_ == 0; });
  }
  if (loop.error) return std::unexpected(*std::move(loop.error));
  return {};
}

}  // namespace syncline::base
