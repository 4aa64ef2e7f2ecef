#include "base/task_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

namespace syncline::base {
namespace {

TEST(TaskThreadsTest, TasksDoNotWaitForEachOther) {
  TaskThreads threads;
  std::promise<void> gate;
  std::promise<void> passed;
  threads.Run([&] { gate.get_future().wait(); });
  threads.Run([&] { passed.set_value(); });
  passed.get_future().wait();
  gate.set_value();
}

TEST(TaskThreadsTest, AllAreDoneAtTheEnd) {
  std::atomic<int> done = 0;
  {
    TaskThreads threads;
    for (int i = 0; i < 50; ++i) {
      threads.Run([&] {
        threads.Run([&] { ++done; });
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(TaskThreadsTest, ATaskMayThrow) {
  TaskThreads threads;
  threads.Run([] { throw std::runtime_error("as planned"); });
}

}  // namespace
}  // namespace syncline::base
