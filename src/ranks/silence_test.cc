// Ranks that are there but cannot be heard, and ranks that only look as if they were gone. A proxy
// stands between a follower and its leader and can stop forwarding without closing anything, as a
// cut cable does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>

#include "ranks/rendezvous.h"
#include "ranks/socket.h"
#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

Deadline Forever() { return steady_clock::now() + kForever; }

// Forwards what its clients and a server on this host say to each other.
class Proxy {
 public:
  explicit Proxy(std::uint16_t server)
      : server_(server),
        listener_(Listener::Open({"127.0.0.1", 0}, Forever(), nullptr).value()),
        thread_([this] { Run(); }) {}
  ~Proxy() {
    stop_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return listener_.port(); }

  void Freeze() { frozen_ = true; }
  // At most so many bytes each way in a millisecond.
  void Throttle(std::size_t bytes) { bytes_ = bytes; }
  std::uint64_t forwarded() const { return forwarded_; }

 private:
  struct Pair {
    Descriptor client;
    Descriptor server;
  };

  void Run() {
    std::vector<Pair> pairs;
    while (!stop_) {
      Accepted accepted = Accept(listener_.sockets()[0]).value();
      if (accepted.socket.open()) {
        pairs.push_back({std::move(accepted.socket),
                         Connect({"127.0.0.1", server_}, Forever(), nullptr).value()});
      }
      for (Pair& pair : pairs) {
        if (frozen_) continue;
        const bool open = Forward(pair.client, pair.server) && Forward(pair.server, pair.client);
        if (!open) pair = Pair{};
      }
      (void)poll(nullptr, 0, 1);
    }
  }

  bool Forward(const Descriptor& from, const Descriptor& to) {
    if (!from.open()) return true;
    std::vector<std::byte> buffer(bytes_);
    const ssize_t count = recv(from.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    forwarded_ += static_cast<std::uint64_t>(count);
    const auto bytes = base::ByteSpan(buffer).first(static_cast<std::size_t>(count));
    return WriteAll(to, bytes, Forever(), nullptr).has_value();
  }

  const std::uint16_t server_;
  const Listener listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> frozen_ = false;
  std::atomic<std::size_t> bytes_ = 1 << 20;
  std::atomic<std::uint64_t> forwarded_ = 0;
  std::thread thread_;
};

// A group of which one rank goes through a proxy.
struct CutGroup {
  CutGroup(LeaderOptions options, std::uint32_t cut_rank) {
    group = MakeGroup(std::move(options), [&](std::uint32_t rank, std::uint16_t port) {
      if (rank != cut_rank) return port;
      proxy = std::make_unique<Proxy>(port);
      return proxy->port();
    });
  }
  std::unique_ptr<Proxy> proxy;
  TestGroup group;
};

LeaderOptions ShortSilence(std::uint32_t size) {
  LeaderOptions options = TestLeaderOptions(size);
  options.silence = milliseconds(1000);
  return options;
}

TEST(Silence, OfOneRankIsNoticedAndToldToAll) {
  CutGroup cut(ShortSilence(4), 2);
  TestGroup& group = cut.group;
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 3>{1, 2, 3}, 1, {}, heard.Listener());
  auto next = std::async(std::launch::async, [&] { return group.follower(3).Next(); });
  auto cut_next = std::async(std::launch::async, [&] { return group.follower(2).Next(); });
  cut.proxy->Freeze();

  const Error error = group.leader_failure.Get();
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("rank 2 (host 127.0.0.1, pid "));
  EXPECT_THAT(error.message, HasSubstr(") has been silent for 1."));
  for (const auto& answer : heard.Get()) EXPECT_EQ(answer.error().message, error.message);
  EXPECT_EQ(group.follower_failures[0].Get().message, error.message);
  EXPECT_EQ(group.follower_failures[2].Get().message, error.message);
  const auto ended = next.get();
  EXPECT_ERROR(ended, Code::kUnavailable, error.message);
  // It hears nothing of all this, only the silence.
  const auto cut_ended = cut_next.get();
  EXPECT_ERROR(cut_ended, Code::kUnavailable, "has been silent for 1.");
  EXPECT_THAT(group.follower_failures[1].Get().message, HasSubstr("the leader (127.0.0.1:"));
}

TEST(Silence, OfAFollowerThatNobodyWaitsForIsNoticedByBothSides) {
  CutGroup cut(ShortSilence(2), 1);
  cut.proxy->Freeze();
  EXPECT_THAT(cut.group.leader_failure.Get().message, HasSubstr("has been silent for"));
  EXPECT_THAT(cut.group.follower_failures[0].Get().message, HasSubstr("has been silent for"));
}

TEST(Silence, OfALeaderThatSaysNothingAfterItsWelcomeIsNoticed) {
  ASSERT_OK_AND_ASSIGN(const Listener listener,
                       Listener::Open({"127.0.0.1", 0}, Forever(), nullptr));
  const LeaderOptions options = ShortSilence(2);
  auto gather = std::async(std::launch::async, [&] { return Gather(listener, options); });
  ASSERT_OK_AND_ASSIGN(const auto follower,
                       Follower::Join(TestFollowerOptions(1, 2, listener.port())));
  ASSERT_OK_AND_ASSIGN(const auto joined, gather.get());
  EXPECT_ERROR(follower->Next(), Code::kUnavailable, "has been silent for 1.");
}

TEST(Silence, OfTheCommandsAloneIsNoticed) {
  LeaderOptions options = ShortSilence(2);
  Heard<Error> failure;
  options.on_failure = failure.Listener();
  ASSERT_OK_AND_ASSIGN(const auto leader, Leader::Listen(options));
  auto join = std::async(std::launch::async, [&] { return leader->Join(); });
  ASSERT_OK_AND_ASSIGN(const Seat seat, TakeSeat(TestFollowerOptions(1, 2, leader->port())));
  ASSERT_OK(join.get());
  // The work connection alone is kept alive.
  const FrameHeaderBytes heartbeat = Encode(FrameHeader{.type = FrameType::kHeartbeat});
  while (!failure.was_called()) {
    (void)WriteAll(seat.work, heartbeat, Forever(), nullptr);
    (void)poll(nullptr, 0, 20);
  }
  EXPECT_THAT(failure.Get().message, HasSubstr("has been silent for 1."));
}

TEST(Silence, AComputationIsNone) {
  TestGroup group = MakeGroup(ShortSilence(2));
  Follower& follower = group.follower(1);
  // Longer than the limit, on the thread of the connection, where it is not even allowed; and
  // nobody is in Next() meanwhile, nor does the leader's callback return.
  follower.OnWork([&](Message message) {
    std::this_thread::sleep_for(milliseconds(1300));
    follower.Reply(message.id, std::move(message.payload));
  });
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, {}, [&](Answers answers) {
    std::this_thread::sleep_for(milliseconds(1300));
    heard.Listener()(std::move(answers));
  });
  const Answers answers = heard.Get();
  EXPECT_OK(answers[0]);
  EXPECT_FALSE(group.leader->failure());
  EXPECT_FALSE(follower.failure());
}

TEST(Silence, ALongTransferIsNone) {
  // Both ways at once; the frames are under way for longer than the limit, and no heartbeat can
  // overtake them.
  CutGroup cut(ShortSilence(2), 1);
  cut.proxy->Throttle(4000);
  Follower& follower = cut.group.follower(1);
  follower.OnWork([&](Message message) { follower.Reply(message.id, std::move(message.payload)); });
  Heard<Answers> first;
  Heard<Answers> second;
  const std::vector<std::byte> payload(3 << 20, std::byte{5});
  const std::array<std::uint32_t, 1> rank = {1};
  cut.group.leader->Ask(rank, 1, payload, first.Listener());
  cut.group.leader->Ask(rank, 1, payload, second.Listener());
  for (const Answers& answers : {first.Get(), second.Get()}) {
    ASSERT_OK(answers[0]);
    EXPECT_TRUE(answers[0].value() == payload);
  }
  EXPECT_FALSE(cut.group.leader->failure());
}

TEST(Silence, ACutInALongTransferIsNoticed) {
  CutGroup cut(ShortSilence(3), 1);
  cut.proxy->Throttle(1000);
  cut.group.follower(1).OnWork([](const Message&) {});
  Heard<Answers> heard;
  const std::uint64_t before = cut.proxy->forwarded();
  cut.group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, std::vector<std::byte>(64 << 20),
                        heard.Listener());
  while (cut.proxy->forwarded() < before + 100'000) (void)poll(nullptr, 0, 1);
  cut.proxy->Freeze();
  const std::string expected = cut.group.leader_failure.Get().message;
  EXPECT_THAT(expected, HasSubstr("rank 1 (host 127.0.0.1, pid "));
  EXPECT_THAT(expected, HasSubstr("has been silent for"));
  EXPECT_EQ(heard.Get()[0].error().message, expected);
  EXPECT_EQ(cut.group.follower_failures[1].Get().message, expected);
}

TEST(Silence, AFarewellOvertakesWhatIsQueued) {
  CutGroup cut(TestLeaderOptions(3), 1);
  cut.proxy->Throttle(64'000);
  cut.group.follower(1).OnWork([](const Message&) {});
  // Minutes' worth, but for the first frame.
  const std::vector<std::byte> payload(1 << 20);
  for (int i = 0; i < 1000; ++i) {
    cut.group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, payload, nullptr);
  }
  cut.group.followers[1].reset();
  const std::string expected = cut.group.leader_failure.Get().message;
  EXPECT_THAT(expected, HasSubstr("rank 2 (host 127.0.0.1, pid "));
  EXPECT_EQ(cut.group.follower_failures[0].Get().message, expected);
}

TEST(Silence, AShutdownDoesNotWaitForEverForWhoCannotHear) {
  CutGroup cut(ShortSilence(3), 1);
  cut.proxy->Freeze();
  cut.group.leader->Shutdown();
  ASSERT_OK_AND_ASSIGN(const auto end, cut.group.follower(2).Next());
  EXPECT_FALSE(end);
  cut.group.leader.reset();
  EXPECT_FALSE(cut.group.leader_failure.was_called());
}

}  // namespace
}  // namespace syncline::ranks
