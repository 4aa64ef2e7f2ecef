#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <numeric>
#include <string>

#include "base/progress.h"
#include "base/result_matchers.h"

namespace syncline::base {
namespace {

class ThreadPoolTest : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 5));

TEST_P(ThreadPoolTest, RunsEachIndexOnceAndManyLoops) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (int round = 0; round < 200; ++round) {
    std::vector<int> seen(97, 0);
    ASSERT_OK(pool.ParallelFor(seen.size(), [&](std::size_t i) -> Status {
      ++seen[i];
      return {};
    }));
    ASSERT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 97);
    ASSERT_EQ(*std::max_element(seen.begin(), seen.end()), 1);
  }
  ASSERT_OK(pool.ParallelFor(0, [](std::size_t) -> Status { return {}; }));
}

TEST_P(ThreadPoolTest, StopsAfterAFailureAndReportsTheLowestThatRan) {
  ThreadPool pool(GetParam());
  std::atomic<std::size_t> ran = 0;
  const Status status = pool.ParallelFor(100'000, [&](std::size_t i) -> Status {
    ++ran;
    if (i >= 10) return Fail(Code::kIo, std::to_string(i));
    return {};
  });
  EXPECT_ERROR(status, Code::kIo, "10");
  EXPECT_LT(ran, 100'000U);
}

TEST_P(ThreadPoolTest, OutOfMemoryIsAnError) {
  ThreadPool pool(GetParam());
  const Status status = pool.ParallelFor(50, [](std::size_t) -> Status { throw std::bad_alloc(); });
  EXPECT_ERROR(status, Code::kLimitExceeded, "out of memory");
  ASSERT_OK(pool.ParallelFor(50, [](std::size_t) -> Status { return {}; }));
}

TEST_P(ThreadPoolTest, CancelStopsTheLoop) {
  ThreadPool pool(GetParam());
  CancelToken cancel;
  std::atomic<std::size_t> ran = 0;
  const Status status = pool.ParallelFor(
      100'000,
      [&](std::size_t i) -> Status {
        ++ran;
        if (i == 3) cancel.Cancel();
        return {};
      },
      &cancel);
  EXPECT_ERROR(status, Code::kCancelled, "cancelled");
  EXPECT_LT(ran, 100'000U);
}

TEST(ProgressTest, ReportsStartSomeStepsAndTheEnd) {
  std::vector<std::uint64_t> seen;
  Progress progress([&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(phase, "fetch");
    EXPECT_EQ(total, 10'000U);
    seen.push_back(done);
  });
  progress.Begin("fetch", 10'000);
  for (int i = 0; i < 10'000; ++i) progress.Add(1);
  EXPECT_EQ(seen.front(), 0U);
  EXPECT_EQ(seen.back(), 10'000U);
  EXPECT_GT(seen.size(), 100U);
  EXPECT_LT(seen.size(), 300U);
}

}  // namespace
}  // namespace syncline::base
