#include "model/gloo_collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/result_matchers.h"
#include "model/collectives.h"

namespace syncline::model {
namespace {

using base::Code;

// Ranks as threads.
template <typename Body>
void RunRanks(std::uint32_t size, const Body& body) {
  ASSERT_OK_AND_ASSIGN(const auto meeting, GlooMeeting::Open());
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto joined = JoinGloo({.rank = rank,
                              .size = size,
                              .meeting_host = "127.0.0.1",
                              .meeting_port = meeting->port(),
                              .own_host = "127.0.0.1",
                              .timeout = std::chrono::minutes(2)});
      ASSERT_OK(joined);
      body(rank, **joined);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooCollectives, SumsAndGathers) {
  RunRanks(3, [](std::uint32_t rank, Collectives& collectives) {
    at::Tensor x = at::full({5, 7}, 1.0F + static_cast<float>(rank), at::kFloat);
    collectives.Sum(x);
    EXPECT_EQ(x.min().item<float>(), 6.0F);
    EXPECT_EQ(x.max().item<float>(), 6.0F);
    const at::Tensor own = at::full({2, 3}, static_cast<float>(rank), at::kFloat);
    const std::vector<at::Tensor> all = collectives.Gather(own);
    ASSERT_EQ(all.size(), rank == 0 ? 3U : 0U);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].sum().item<float>(), 6.0F * static_cast<float>(i));
    }
    EXPECT_GT(collectives.seconds(), 0);
    at::Tensor nothing = at::zeros({0, 4}, at::kFloat);
    collectives.Sum(nothing);
    EXPECT_EQ(collectives.Gather(nothing).size(), rank == 0 ? 3U : 0U);
  });
}

// The residual stream is the same on all ranks only if sums are.
TEST(GlooCollectives, SumsAreTheSameBitsOnAllRanks) {
  constexpr std::uint32_t kRanks = 4;
  std::vector<at::Tensor> sums(kRanks);
  RunRanks(kRanks, [&](std::uint32_t rank, Collectives& collectives) {
    at::Tensor x = at::zeros({1000, 33}, at::kFloat);
    auto* values = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      values[i] = 1.0F / static_cast<float>(1 + i % 977 + rank * 13);
    }
    collectives.Sum(x);
    sums[rank] = x;
  });
  for (std::uint32_t rank = 1; rank < kRanks; ++rank) EXPECT_TRUE(sums[rank].equal(sums[0]));
}

TEST(GlooCollectives, NobodyAtTheMeetingIsAnError) {
  EXPECT_ERROR(JoinGloo({.rank = 1,
                         .size = 2,
                         .meeting_host = "127.0.0.1",
                         .meeting_port = 1,
                         .own_host = "127.0.0.1",
                         .timeout = std::chrono::milliseconds(200)}),
               Code::kUnavailable, "127.0.0.1:1");
}

}  // namespace
}  // namespace syncline::model
