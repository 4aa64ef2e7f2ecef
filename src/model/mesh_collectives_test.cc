#include "model/mesh_collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/result_matchers.h"
#include "model/collectives.h"
#include "ranks/mesh.h"

namespace syncline::model {
namespace {

// Ranks as threads.
void RunRanks(std::uint32_t size, const std::function<void(std::uint32_t, Collectives&)>& body) {
  std::vector<std::unique_ptr<ranks::Mesh>> meshes;
  std::vector<ranks::Address> addresses;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    meshes.push_back(*ranks::Mesh::Listen(rank, size, "127.0.0.1", ""));
    addresses.push_back(meshes.back()->address());
  }
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto soon = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      ASSERT_OK(meshes[rank]->Connect(addresses, soon));
      const auto collectives = MakeMeshCollectives(*meshes[rank], rank, size);
      body(rank, *collectives);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MeshCollectives, SumsAndGathers) {
  for (const std::uint32_t size : {2U, 3U, 5U}) {
    RunRanks(size, [size](std::uint32_t rank, Collectives& collectives) {
      const float whole = static_cast<float>(size * (size + 1)) / 2;
      // In one trip and in two; of sizes that the ranks do not divide.
      for (const std::int64_t rows : {1, 7, 9001}) {
        at::Tensor x = at::full({rows, 7}, 1.0F + static_cast<float>(rank), at::kFloat);
        collectives.Sum(x);
        EXPECT_EQ(x.min().item<float>(), whole);
        EXPECT_EQ(x.max().item<float>(), whole);
        const at::Tensor own = at::full({rows, 3}, static_cast<float>(rank), at::kFloat);
        const std::vector<at::Tensor> all = collectives.Gather(own);
        ASSERT_EQ(all.size(), rank == 0 ? size : 0U);
        for (std::size_t i = 0; i < all.size(); ++i) {
          EXPECT_EQ(all[i].min().item<float>(), static_cast<float>(i));
          EXPECT_EQ(all[i].max().item<float>(), static_cast<float>(i));
        }
      }
      EXPECT_GT(collectives.seconds(), 0);
      at::Tensor nothing = at::zeros({0, 4}, at::kFloat);
      collectives.Sum(nothing);
      EXPECT_EQ(collectives.Gather(nothing).size(), rank == 0 ? size : 0U);
    });
  }
}

// The residual stream is the same on all ranks only if sums are; and a sum that is made in slices is
// the same as one that is not.
TEST(MeshCollectives, SumsAreInTheOrderOfTheRanks) {
  constexpr std::uint32_t kRanks = 4;
  const auto value = [](std::uint32_t rank, std::int64_t i) {
    return 1.0F / static_cast<float>(1 + i % 977 + rank * 13);
  };
  for (const std::int64_t count : {100, 30001}) {
    RunRanks(kRanks, [&](std::uint32_t rank, Collectives& collectives) {
      at::Tensor x = at::zeros({count}, at::kFloat);
      auto* values = x.mutable_data_ptr<float>();
      for (std::int64_t i = 0; i < count; ++i) values[i] = value(rank, i);
      collectives.Sum(x);
      for (std::int64_t i = 0; i < count; ++i) {
        const float expected = ((value(0, i) + value(1, i)) + value(2, i)) + value(3, i);
        ASSERT_EQ(values[i], expected) << i;
      }
    });
  }
}

TEST(MeshCollectives, OtherTensorsAreRefused) {
  RunRanks(2, [](std::uint32_t, Collectives& collectives) {
    at::Tensor half = at::zeros({4}, at::kHalf);
    EXPECT_THROW(collectives.Sum(half), std::invalid_argument);
    at::Tensor columns = at::zeros({4, 4}, at::kFloat).t();
    EXPECT_THROW(collectives.Sum(columns), std::invalid_argument);
  });
}

TEST(MeshCollectives, ABrokenMeshThrows) {
  auto mesh = *ranks::Mesh::Listen(0, 2, "127.0.0.1", "");
  mesh->Abort({base::Code::kUnavailable, "rank 1 is gone"});
  at::Tensor x = at::zeros({4}, at::kFloat);
  EXPECT_THAT([&] { MakeMeshCollectives(*mesh, 0, 2)->Sum(x); },
              testing::ThrowsMessage<std::runtime_error>("rank 1 is gone"));
}

}  // namespace
}  // namespace syncline::model
