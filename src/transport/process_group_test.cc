// Real groups of syncline-group processes; members of torch itself are in tests/trainers.
#include "transport/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/result_matchers.h"
#include "transport/free_port.h"

namespace syncline::transport {
namespace {

using base::Code;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Group = std::unique_ptr<ProcessGroup>;

constexpr milliseconds kTimeout(20000);

GroupAddress At(std::uint16_t port, std::uint32_t rank, std::uint32_t size = 2) {
  return {.name = "weights", .host = "127.0.0.1", .port = port, .rank = rank, .size = size};
}

base::Arena Memory(std::uint64_t bytes) { return *base::Arena::Create("test", bytes); }

// All members, by rank; each joins on a thread of its own.
std::vector<base::Result<Group>> JoinAll(std::vector<GroupAddress> addresses) {
  std::vector<std::future<base::Result<Group>>> joining;
  for (const GroupAddress& address : addresses) {
    joining.push_back(std::async(
        std::launch::async, [address] { return ProcessGroup::Join(address, kTimeout, nullptr); }));
  }
  std::vector<base::Result<Group>> groups;
  for (auto& one : joining) groups.push_back(one.get());
  return groups;
}

TEST(ProcessGroupTest, BroadcastsReachAllMembers) {
  const std::uint16_t port = FreePort();
  auto groups = JoinAll({At(port, 0, 3), At(port, 1, 3), At(port, 2, 3)});
  for (const auto& group : groups) ASSERT_TRUE(group.has_value()) << group.error().message;
  const base::Arena sent = Memory(100000);
  for (std::size_t i = 0; i < sent.bytes().size(); ++i) {
    sent.bytes()[i] = static_cast<std::byte>(i % 251);
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<base::Status>> receiving;
    std::vector<base::Arena> received;
    for (int i = 0; i < 2; ++i) received.push_back(Memory(60003));
    const std::vector<std::uint64_t> sizes = {3, 0, 60000};
    for (int i = 0; i < 2; ++i) {
      receiving.push_back(std::async(std::launch::async, [&, i] {
        return (*groups[static_cast<std::size_t>(i) + 1])
            ->Receive(received[static_cast<std::size_t>(i)], sizes, nullptr);
      }));
    }
    const std::vector<ProcessGroup::Range> ranges = {{7, 3}, {0, 0}, {40000, 60000}};
    EXPECT_OK((*groups[0])->Send(sent.descriptor(), ranges, nullptr));
    for (auto& one : receiving) EXPECT_OK(one.get());
    for (const base::Arena& memory : received) {
      EXPECT_TRUE(std::ranges::equal(memory.bytes().first(3), sent.bytes().subspan(7, 3)));
      EXPECT_TRUE(
          std::ranges::equal(memory.bytes().subspan(3), sent.bytes().subspan(40000, 60000)));
    }
  }
}

// BR-38: every way to write the loopback.
TEST(ProcessGroupTest, Br38Addresses) {
  for (const char* host : {"127.0.0.1", "::1", "[::1]", "localhost"}) {
    GroupAddress leader = At(FreePort(), 0);
    leader.host = host;
    GroupAddress follower = leader;
    follower.rank = 1;
    const auto groups = JoinAll({leader, follower});
    for (const auto& group : groups)
      EXPECT_TRUE(group.has_value()) << host << ": " << group.error().message;
  }
}

TEST(ProcessGroupTest, Br38NobodyIsThere) {
  const milliseconds soon(300);
  GroupAddress address = At(FreePort(), 1);
  const auto closed = ProcessGroup::Join(address, soon, nullptr);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kUnavailable);
  EXPECT_THAT(closed.error().message, HasSubstr("127.0.0.1 port"));
  EXPECT_THAT(closed.error().message, HasSubstr("refused"));
  address.host = "no.such.host.invalid";
  const auto unknown = ProcessGroup::Join(address, soon, nullptr);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("no.such.host.invalid"));
  const auto alone = ProcessGroup::Join(At(FreePort(), 0), soon, nullptr);
  ASSERT_FALSE(alone.has_value());
  EXPECT_THAT(alone.error().message, HasSubstr("1/2"));
}

TEST(ProcessGroupTest, WhatMakesNoSenseIsRefused) {
  const auto refusal = [](const GroupAddress& address) {
    const auto group = ProcessGroup::Join(address, kTimeout, nullptr);
    EXPECT_FALSE(group.has_value());
    EXPECT_EQ(group.error().code, Code::kInvalidArgument);
    return group.error().message;
  };
  EXPECT_THAT(refusal(At(0, 1)), HasSubstr("master_port"));
  EXPECT_THAT(refusal(At(1, 2)), HasSubstr("rank 2 is not below world_size 2"));
  GroupAddress nccl = At(1, 1);
  nccl.backend = "nccl";
  EXPECT_THAT(refusal(nccl), HasSubstr("gloo"));
  GroupAddress nameless = At(1, 1);
  nameless.name.clear();
  EXPECT_THAT(refusal(nameless), HasSubstr("group_name"));
}

TEST(ProcessGroupTest, JoiningCanBeCancelled) {
  base::CancelToken cancel;
  auto joining = std::async(
      std::launch::async, [&] { return ProcessGroup::Join(At(FreePort(), 1), kTimeout, &cancel); });
  cancel.Cancel();
  const auto group = joining.get();
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().code, Code::kCancelled);
}

class PairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::uint16_t port = FreePort();
    auto groups = JoinAll({At(port, 0), At(port, 1)});
    for (const auto& group : groups) ASSERT_TRUE(group.has_value()) << group.error().message;
    trainer_ = *std::move(groups[0]);
    engine_ = *std::move(groups[1]);
  }
  std::future<base::Status> Receive(std::uint64_t bytes) {
    return std::async(std::launch::async, [this, bytes] {
      return engine_->Receive(memory_, std::vector<std::uint64_t>{bytes}, nullptr);
    });
  }
  base::Status Send(std::uint64_t bytes) {
    const std::vector<ProcessGroup::Range> ranges = {{0, bytes}};
    return trainer_->Send(memory_.descriptor(), ranges, nullptr);
  }

  base::Arena memory_ = Memory(std::uint64_t{64} << 20);
  Group trainer_;
  Group engine_;
};

// The library ends its process here.
TEST_F(PairTest, MoreThanWasAnnounced) {
  auto receiving = Receive(50);
  static_cast<void>(Send(1000));
  const base::Status received = receiving.get();
  ASSERT_FALSE(received.has_value());
  EXPECT_THAT(received.error().message, HasSubstr("1000 vs 50"));
  EXPECT_FALSE(Receive(50).get().has_value());
}

TEST_F(PairTest, TheSenderEnds) {
  auto receiving = Receive(1000);
  trainer_.reset();
  const base::Status received = receiving.get();
  ASSERT_FALSE(received.has_value());
  EXPECT_EQ(received.error().code, Code::kUnavailable);
}

TEST_F(PairTest, AMemberLeavesWhileTheOtherSends) {
  auto sending = std::async(std::launch::async, [this] { return Send(memory_.bytes().size()); });
  engine_.reset();
  EXPECT_FALSE(sending.get().has_value());
}

TEST_F(PairTest, LeavingEndsATransfer) {
  auto receiving = Receive(1000);
  engine_->Leave("the group was destroyed");
  const base::Status received = receiving.get();
  ASSERT_FALSE(received.has_value());
  EXPECT_THAT(received.error().message, HasSubstr("the group was destroyed"));
}

}  // namespace
}  // namespace syncline::transport
