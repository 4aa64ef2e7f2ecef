// For tests: a group whose ranks are objects of one process, and small helpers.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result_matchers.h"
#include "ranks/follower.h"
#include "ranks/leader.h"

namespace syncline::ranks {

// A bound that only a hang reaches.
constexpr std::chrono::seconds kForever{60};

inline std::vector<std::byte> Bytes(std::string_view text) {
  const base::ByteSpan bytes = base::AsBytes(text);
  return {bytes.begin(), bytes.end()};
}
inline std::string Text(const std::vector<std::byte>& bytes) {
  return std::string(base::AsText(bytes));
}

inline LeaderOptions TestLeaderOptions(std::uint32_t size) {
  LeaderOptions options;
  options.listen = {.host = "127.0.0.1", .port = 0};
  options.size = size;
  options.token = "secret";
  options.fingerprint = "model";
  options.heartbeat = std::chrono::milliseconds(50);
  options.silence = std::chrono::seconds(20);
  options.join_timeout = kForever;
  return options;
}

inline FollowerOptions TestFollowerOptions(std::uint32_t rank, std::uint32_t size,
                                           std::uint16_t port) {
  FollowerOptions options;
  options.leader = {.host = "127.0.0.1", .port = port};
  options.group = {.rank = rank, .size = size};
  options.token = "secret";
  options.fingerprint = "model";
  options.join_timeout = kForever;
  return options;
}

// What a callback that is called once was told.
template <typename T>
class Heard {
 public:
  // A second call is a failure of the test.
  std::function<void(T)> Listener() {
    return [state = state_](T value) {
      if (state->calls++ == 0) {
        state->promise.set_value(std::move(value));
      } else {
        ADD_FAILURE() << "called twice";
      }
    };
  }
  bool was_called() const { return state_->calls > 0; }
  // Fails the test and gives a default if it does not come.
  T Get() {
    std::future<T> future = state_->promise.get_future();
    if (future.wait_for(kForever) != std::future_status::ready) {
      ADD_FAILURE() << "was never called";
      return T{};
    }
    return future.get();
  }

 private:
  struct State {
    std::promise<T> promise;
    std::atomic<int> calls = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

using Answers = std::vector<base::Result<std::vector<std::byte>>>;

struct TestGroup {
  Heard<base::Error> leader_failure;
  std::vector<Heard<base::Error>> follower_failures;  // of rank 1, 2 …
  std::unique_ptr<Leader> leader;
  std::vector<std::unique_ptr<Follower>> followers;

  Follower& follower(std::uint32_t rank) { return *followers[rank - 1]; }
};

// `port_of`: where a rank is to look for the leader that listens on the given port.
inline TestGroup MakeGroup(
    LeaderOptions options,
    const std::function<std::uint16_t(std::uint32_t, std::uint16_t)>& port_of =
        [](std::uint32_t, std::uint16_t port) { return port; }) {
  TestGroup group;
  const std::uint32_t size = options.size;
  options.on_failure = group.leader_failure.Listener();
  auto leader = Leader::Listen(std::move(options));
  if (!leader) {
    ADD_FAILURE() << leader.error().message;
    return group;
  }
  group.follower_failures.resize(size - 1);
  std::vector<std::future<base::Result<std::unique_ptr<Follower>>>> joins;
  for (std::uint32_t rank = 1; rank < size; ++rank) {
    FollowerOptions follower = TestFollowerOptions(rank, size, port_of(rank, (*leader)->port()));
    follower.on_failure = group.follower_failures[rank - 1].Listener();
    joins.push_back(std::async(
        std::launch::async, [follower = std::move(follower)] { return Follower::Join(follower); }));
  }
  const base::Status joined = (*leader)->Join();
  if (!joined) ADD_FAILURE() << joined.error().message;
  for (auto& join : joins) {
    auto follower = join.get();
    if (!follower) {
      ADD_FAILURE() << follower.error().message;
      continue;
    }
    group.followers.push_back(*std::move(follower));
  }
  group.leader = *std::move(leader);
  return group;
}

inline TestGroup MakeGroup(std::uint32_t size) { return MakeGroup(TestLeaderOptions(size)); }

}  // namespace syncline::ranks
