#include "transport/group_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "base/result_matchers.h"
#include "payload/announced.h"
#include "transport/free_port.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Status;
using payload::NamedTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout(20000);

GroupAddress At(std::string name, std::uint16_t port, std::uint32_t rank) {
  return {.name = std::move(name), .host = "127.0.0.1", .port = port, .rank = rank, .size = 2};
}

// Rank 0 of a group of two.
class Trainer {
 public:
  // With rank 1 in `table`.
  Trainer(GroupTable& table, const std::string& name) {
    const std::uint16_t port = FreePort();
    auto joined = std::async(std::launch::async, [&] { return table.Join(At(name, port, 1), 1); });
    auto group = ProcessGroup::Join(At(name, port, 0), kTimeout, nullptr);
    EXPECT_OK(joined.get());
    EXPECT_OK(group);
    if (group) group_ = *std::move(group);
  }

  // Two tensors, each byte of them `value`.
  static std::vector<NamedTensor> Announced() {
    return *payload::AnnouncedTensors({"a", "b"}, {"uint8", "bfloat16"}, {{3}, {500}});
  }
  void Send(int value, bool flattened) {
    std::ranges::fill(memory_.bytes(), static_cast<std::byte>(value));
    const std::vector<ProcessGroup::Range> one = {{0, 1003}};
    const std::vector<ProcessGroup::Range> two = {{0, 3}, {3, 1000}};
    EXPECT_OK(group_->Send(memory_.descriptor(), flattened ? one : two, nullptr));
  }
  void End() { group_.reset(); }

 private:
  base::Arena memory_ = *base::Arena::Create("trainer", 1003);
  std::unique_ptr<ProcessGroup> group_;
};

class GroupTableTest : public ::testing::Test {
 protected:
  auto Receive(const std::string& name, bool flattened) {
    return std::async(std::launch::async, [this, name, flattened] {
      return table_.Receive(name, Trainer::Announced(), flattened);
    });
  }

  base::CancelToken cancel_;
  GroupTable table_{{.timeout = kTimeout, .most_bytes = 2000}, cancel_};
};

TEST_F(GroupTableTest, SeveralGroupsAtOnce) {
  Trainer first(table_, "pp_0");
  Trainer second(table_, "pp_1");
  EXPECT_THAT(table_.names(), ElementsAre("pp_0", "pp_1"));
  auto from_second = Receive("pp_1", true);
  auto from_first = Receive("pp_0", false);
  first.Send(1, false);
  second.Send(2, true);
  ASSERT_OK_AND_ASSIGN(const auto one, from_first.get());
  ASSERT_OK_AND_ASSIGN(const auto two, from_second.get());
  EXPECT_EQ(one->tensors()[1].name, "b");
  EXPECT_TRUE(
      std::ranges::all_of(one->tensors()[1].bytes, [](auto b) { return b == std::byte{1}; }));
  EXPECT_TRUE(
      std::ranges::all_of(two->tensors()[0].bytes, [](auto b) { return b == std::byte{2}; }));
}

// What is still read is not written over.
TEST_F(GroupTableTest, BatchesKeepTheirBytes) {
  Trainer trainer(table_, "g");
  auto receiving = Receive("g", true);
  trainer.Send(1, true);
  auto first = receiving.get();
  ASSERT_OK(first);
  receiving = Receive("g", true);
  trainer.Send(2, true);
  auto second = receiving.get();
  ASSERT_OK(second);
  EXPECT_EQ((*first)->tensors()[0].bytes[0], std::byte{1});
  const std::byte* kept = (*second)->tensors()[0].bytes.data();
  second = nullptr;
  receiving = Receive("g", true);
  trainer.Send(3, true);
  auto third = receiving.get();
  ASSERT_OK(third);
  EXPECT_EQ((*third)->tensors()[0].bytes.data(), kept);  // memory is used again
}

TEST_F(GroupTableTest, UnknownGroups) {
  Trainer trainer(table_, "known");
  EXPECT_ERROR(table_.Receive("other", Trainer::Announced(), false), Code::kNotFound,
               "Group other not in [known]. Please call `init_weights_update_group` first.");
  EXPECT_ERROR(table_.Leave("other", 0), Code::kNotFound,
               "The group to be destroyed does not exist.");
}

TEST_F(GroupTableTest, AGroupThatFailedIsGone) {
  Trainer trainer(table_, "g");
  auto receiving = Receive("g", false);
  trainer.End();
  EXPECT_FALSE(receiving.get().has_value());
  EXPECT_THAT(table_.names(), ElementsAre());
  Trainer again(table_, "g");
  receiving = Receive("g", false);
  again.Send(4, false);
  EXPECT_OK(receiving.get());
}

TEST_F(GroupTableTest, MoreThanTheBound) {
  Trainer trainer(table_, "g");
  EXPECT_ERROR(table_.Receive("g", *payload::AnnouncedTensors({"a"}, {"uint8"}, {{2001}}), false),
               Code::kLimitExceeded, "2.00 kB are announced");
  EXPECT_THAT(table_.names(), ElementsAre());
}

TEST_F(GroupTableTest, LeavingEndsWhatWaits) {
  Trainer trainer(table_, "g");
  auto receiving = Receive("g", false);
  EXPECT_ERROR(table_.Leave("g", 7), Code::kNotFound, "does not exist");
  EXPECT_OK(table_.Leave("g", 1));
  const auto received = receiving.get();
  ASSERT_FALSE(received.has_value());
}

// A trainer that died while it joined comes again.
TEST_F(GroupTableTest, JoiningAnewReplacesWhatWaits) {
  auto stale =
      std::async(std::launch::async, [&] { return table_.Join(At("g", FreePort(), 1), 1); });
  while (table_.Leave("g", 0).has_value() == false) {
  }
  EXPECT_EQ(stale.get().error().code, Code::kCancelled);
  Trainer trainer(table_, "g");
  Trainer anew(table_, "g");
  auto receiving = Receive("g", true);
  anew.Send(5, true);
  EXPECT_OK(receiving.get());
}

TEST_F(GroupTableTest, CancellingEndsEverything) {
  Trainer trainer(table_, "g");
  auto receiving = Receive("g", false);
  auto joining =
      std::async(std::launch::async, [&] { return table_.Join(At("h", FreePort(), 1), 1); });
  cancel_.Cancel();
  EXPECT_EQ(receiving.get().error().code, Code::kCancelled);
  EXPECT_EQ(joining.get().error().code, Code::kCancelled);
}

}  // namespace
}  // namespace syncline::transport
