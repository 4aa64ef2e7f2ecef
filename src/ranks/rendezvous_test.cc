// Who may join a group: strangers, wrong followers, late ones; and followers and leaders that join
// as they should and then break the protocol.
#include "ranks/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

Deadline Forever() { return steady_clock::now() + kForever; }

Descriptor Dial(std::uint16_t port) {
  return Connect({"127.0.0.1", port}, Forever(), nullptr).value();
}

void Say(const Descriptor& socket, base::ByteSpan bytes) {
  EXPECT_OK(WriteAll(socket, bytes, Forever(), nullptr));
}

// Waits until the other side has closed; what it has said meanwhile.
std::string Rest(const Descriptor& socket) {
  std::string text;
  while (true) {
    std::array<char, 1000> buffer;
    const ssize_t count = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EAGAIN) {
      return text;
    } else {
      pollfd state = {.fd = socket.get(), .events = POLLIN, .revents = 0};
      if (poll(&state, 1, 60'000) != 1) return "is still open";
    }
  }
}

class Joining {
 public:
  explicit Joining(LeaderOptions options) : leader(Leader::Listen(std::move(options)).value()) {
    done_ = std::async(std::launch::async, [this] { return leader->Join(); });
  }
  Status Done() { return done_.get(); }

  std::unique_ptr<Leader> leader;

 private:
  std::future<Status> done_;
};

TEST(Rendezvous, StrangersAreDroppedAndDoNoHarm) {
  Joining joining(TestLeaderOptions(2));
  const std::uint16_t port = joining.leader->port();
  std::vector<Descriptor> quiet;
  for (int i = 0; i < 10; ++i) quiet.push_back(Dial(port));  // they never say a word
  {
    const Descriptor gone = Dial(port);
  }

  const std::vector<std::byte> hello =
      Encode(Hello{.group = {.rank = 1, .size = 2}, .token = "secret", .fingerprint = "model"})
          .value();
  std::vector<std::vector<std::byte>> garbage = {Bytes("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                                 Bytes(std::string(100'000, 'x')), Bytes("\n")};
  garbage.push_back(hello);
  garbage.back().push_back(std::byte{1});  // goes on without a welcome
  garbage.push_back(hello);
  garbage.back()[kPreambleBytes + 5] = std::byte{255};  // announces terabytes
  garbage.push_back(hello);
  garbage.back()[kPreambleBytes + kFrameHeaderBytes + 40] = std::byte{255};  // and a long token
  for (const auto& bytes : garbage) {
    const Descriptor stranger = Dial(port);
    (void)WriteAll(stranger, bytes, Forever(), nullptr);  // may be dropped before all is written
    EXPECT_EQ(Rest(stranger), "");
  }
  // A part of a hello, of one that stays and of one that leaves.
  const Descriptor slow = Dial(port);
  Say(slow, base::ByteSpan(hello).first(30));
  {
    const Descriptor gone = Dial(port);
    Say(gone, base::ByteSpan(hello).first(30));
  }
  ASSERT_OK(Follower::Join(TestFollowerOptions(1, 2, port)));
  EXPECT_OK(joining.Done());
}

TEST(Rendezvous, ManyStrangersDoNotKeepAFollowerOut) {
  Joining joining(TestLeaderOptions(2));
  std::vector<Descriptor> quiet;
  for (int i = 0; i < 400; ++i) quiet.push_back(Dial(joining.leader->port()));
  ASSERT_OK(Follower::Join(TestFollowerOptions(1, 2, joining.leader->port())));
  EXPECT_OK(joining.Done());
}

struct WrongCase {
  std::string name;
  std::function<void(FollowerOptions&)> change;
  Code code;
  std::string reason;
};

TEST(Rendezvous, WrongFollowersAreRefusedWithAReasonForBoth) {
  const std::vector<WrongCase> cases = {
      {"token", [](auto& o) { o.token = "secreT"; }, Code::kPermissionDenied, "the token"},
      {"longer token", [](auto& o) { o.token = "secretsecret"; }, Code::kPermissionDenied, "token"},
      {"no token", [](auto& o) { o.token = ""; }, Code::kPermissionDenied, "the token"},
      {"fingerprint", [](auto& o) { o.fingerprint = "other"; }, Code::kIncompatible,
       "its model or options are \"other\", expected \"model\""},
      {"size", [](auto& o) { o.group.size = 4; }, Code::kIncompatible,
       "it is of a group of 4 ranks on 1 nodes, expected 3 on 1"},
      {"nodes", [](auto& o) { o.group.nodes = 2; }, Code::kIncompatible, "on 2 nodes"},
  };
  for (const WrongCase& wrong : cases) {
    LeaderOptions options = TestLeaderOptions(3);
    options.join_timeout = milliseconds(300);
    Joining joining(options);
    FollowerOptions follower = TestFollowerOptions(1, 3, joining.leader->port());
    wrong.change(follower);
    SCOPED_TRACE(wrong.name);
    EXPECT_ERROR(Follower::Join(follower), wrong.code, wrong.reason);
    const Status done = joining.Done();
    EXPECT_ERROR(done, Code::kTimeout, "2 of 3 ranks are missing: 1, 2 (rank 1 (host 127.0.0.1");
    EXPECT_THAT(done.error().message, HasSubstr(wrong.reason));
  }
}

// What the leader answers to a hello.
Error Refusal(std::uint16_t port, std::vector<std::byte> hello) {
  const Descriptor socket = Dial(port);
  Say(socket, hello);
  const std::string text = Rest(socket);
  if (text.size() < kFrameHeaderBytes) return {Code::kInternal, "no answer"};
  return DecodeError(base::AsBytes(text).subspan(kFrameHeaderBytes));
}

TEST(Rendezvous, NumbersOutOfRangeAreRefused) {
  LeaderOptions options = TestLeaderOptions(3);
  options.nodes = 2;
  Joining joining(options);
  const auto refusal = [&](Group group) {
    return Refusal(joining.leader->port(),
                   Encode(Hello{.group = group, .token = "secret", .fingerprint = "model"}).value())
        .message;
  };
  EXPECT_EQ(refusal({.rank = 0, .size = 3, .node_rank = 0, .nodes = 2}),
            "rank 0 is out of range: expected 1 to 2");
  EXPECT_EQ(refusal({.rank = 3, .size = 3, .node_rank = 0, .nodes = 2}),
            "rank 3 is out of range: expected 1 to 2");
  EXPECT_EQ(refusal({.rank = 4'000'000'000, .size = 3, .node_rank = 0, .nodes = 2}),
            "rank 4000000000 is out of range: expected 1 to 2");
  EXPECT_EQ(refusal({.rank = 1, .size = 3, .node_rank = 2, .nodes = 2}),
            "node rank 2 is out of range: expected 0 to 1");
  std::vector<std::byte> newer = Encode(Hello{.token = "secret"}).value();
  newer[8] = std::byte{9};
  EXPECT_EQ(Refusal(joining.leader->port(), newer).message, "it speaks protocol 9, the leader 1");
  std::vector<std::future<Result<std::unique_ptr<Follower>>>> joins;
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    FollowerOptions follower = TestFollowerOptions(rank, 3, joining.leader->port());
    follower.group = {.rank = rank, .size = 3, .node_rank = rank - 1, .nodes = 2};
    joins.push_back(
        std::async(std::launch::async, [follower] { return Follower::Join(follower); }));
  }
  for (auto& join : joins) EXPECT_OK(join.get());
  EXPECT_OK(joining.Done());
  EXPECT_EQ(joining.leader->peers()[1].node_rank, 1);
}

TEST(Rendezvous, ARankThatIsThereAlreadyIsRefused) {
  Joining joining(TestLeaderOptions(3));
  const std::uint16_t port = joining.leader->port();
  const auto join = [port](std::uint32_t rank) {
    return std::async(std::launch::async,
                      [=] { return Follower::Join(TestFollowerOptions(rank, 3, port)); });
  };
  auto a = join(1);
  auto b = join(1);
  // One of the two is refused; the other waits for rank 2.
  while (a.wait_for(milliseconds(1)) != std::future_status::ready &&
         b.wait_for(milliseconds(1)) != std::future_status::ready) {
  }
  const bool a_is_refused = a.wait_for(milliseconds(0)) == std::future_status::ready;
  auto& refused = a_is_refused ? a : b;
  auto& accepted = a_is_refused ? b : a;
  const auto error = refused.get();
  EXPECT_ERROR(error, Code::kAlreadyExists, "rank 1 is there already (host 127.0.0.1, pid ");
  EXPECT_OK(join(2).get());
  EXPECT_OK(accepted.get());
  EXPECT_OK(joining.Done());
}

TEST(Rendezvous, ARankThatDiesBeforeTheGroupIsCompleteMayComeBack) {
  Joining joining(TestLeaderOptions(3));
  const std::uint16_t port = joining.leader->port();
  Hello hello{
      .group = {.rank = 1, .size = 3}, .chance = 1, .token = "secret", .fingerprint = "model"};
  {
    const Descriptor commands = Dial(port);
    Say(commands, Encode(hello).value());
    hello.channel = Channel::kWork;
    const Descriptor work = Dial(port);
    Say(work, Encode(hello).value());
    // They have their place now: another of that rank is refused.
    hello.chance = 2;
    EXPECT_THAT(Refusal(port, Encode(hello).value()).message, HasSubstr("is there already"));
  }
  std::vector<std::future<Result<std::unique_ptr<Follower>>>> joins;
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    joins.push_back(std::async(std::launch::async,
                               [=] { return Follower::Join(TestFollowerOptions(rank, 3, port)); }));
  }
  for (auto& join : joins) EXPECT_OK(join.get());
  EXPECT_OK(joining.Done());
}

TEST(Rendezvous, AFollowerMayComeBeforeItsLeader) {
  std::optional<Listener> early = Listener::Open({"127.0.0.1", 0}, Forever(), nullptr).value();
  const std::uint16_t port = early->port();
  auto join = std::async(std::launch::async,
                         [=] { return Follower::Join(TestFollowerOptions(1, 2, port)); });
  // It has tried, and met somebody who hangs up.
  pollfd state = {.fd = early->sockets()[0].get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&state, 1, 60'000), 1);
  early.reset();
  LeaderOptions options = TestLeaderOptions(2);
  options.listen.port = port;
  Joining joining(options);
  EXPECT_OK(join.get());
  EXPECT_OK(joining.Done());
}

TEST(Rendezvous, WhatIsNoLeaderIsNamed) {
  ASSERT_OK_AND_ASSIGN(const Listener other, Listener::Open({"127.0.0.1", 0}, Forever(), nullptr));
  FollowerOptions options = TestFollowerOptions(1, 2, other.port());
  options.join_timeout = milliseconds(500);
  auto join = std::async(std::launch::async, [options] { return Follower::Join(options); });
  std::vector<Descriptor> open;
  while (join.wait_for(milliseconds(1)) != std::future_status::ready) {
    Accepted accepted = Accept(other.sockets()[0]).value();
    if (!accepted.socket.open()) continue;
    (void)WriteAll(accepted.socket, Bytes("HTTP/1.1 400 Bad Request\r\n\r\n"), Forever(), nullptr);
    open.push_back(std::move(accepted.socket));
  }
  EXPECT_ERROR(join.get(), Code::kTimeout, "is no leader of ranks");
}

TEST(Rendezvous, AFollowerDoesNotWaitForEverForTheOthers) {
  Joining joining([] {
    LeaderOptions options = TestLeaderOptions(3);
    options.join_timeout = milliseconds(600);
    return options;
  }());
  FollowerOptions options = TestFollowerOptions(2, 3, joining.leader->port());
  options.join_timeout = milliseconds(300);
  EXPECT_ERROR(Follower::Join(options), Code::kTimeout, "still waits for other ranks");
  EXPECT_ERROR(joining.Done(), Code::kTimeout, "2 of 3 ranks are missing: 1, 2");
}

TEST(Rendezvous, OptionsThatMakeNoSenseAreRefused) {
  LeaderOptions options = TestLeaderOptions(2);
  options.silence = options.heartbeat;
  EXPECT_ERROR(Leader::Listen(options), Code::kInvalidArgument, "must be longer than the beat");
  options = TestLeaderOptions(0);
  EXPECT_ERROR(Leader::Listen(options), Code::kInvalidArgument, "a group of 0 ranks");
  EXPECT_ERROR(Follower::Join(TestFollowerOptions(0, 2, 1)), Code::kInvalidArgument, "rank 0");
  EXPECT_ERROR(Follower::Join(TestFollowerOptions(2, 2, 1)), Code::kInvalidArgument, "rank 2");
}

// A leader, and a follower of which there are only the two connections.
struct HostileFollower {
  HostileFollower() {
    LeaderOptions options = TestLeaderOptions(2);
    options.on_failure = failure.Listener();
    Joining joining(options);
    seat = TakeSeat(TestFollowerOptions(1, 2, joining.leader->port())).value();
    EXPECT_OK(joining.Done());
    leader = std::move(joining.leader);
  }
  Heard<Error> failure;
  std::unique_ptr<Leader> leader;
  Seat seat;  // ends first
};

std::vector<std::byte> Header(std::uint64_t size, std::uint32_t type) {
  const FrameHeaderBytes bytes =
      Encode(FrameHeader{.size = size, .id = 1, .type = static_cast<FrameType>(type)});
  return {bytes.begin(), bytes.end()};
}

TEST(Hostile, FollowersEndTheGroupAndNothingElse) {
  for (const Channel channel : {Channel::kCommands, Channel::kWork}) {
    for (const auto& [size, type] : std::vector<std::pair<std::uint64_t, std::uint32_t>>{
             {0, 0}, {0, 77}, {kMaxPayload + 1, 7}, {0, 1}, {0, 5}, {0, 6}, {0, 9}, {3, 4}}) {
      HostileFollower hostile;
      Heard<Answers> heard;
      hostile.leader->CommandAndAsk(1, {}, heard.Listener());
      Say(channel == Channel::kCommands ? hostile.seat.commands : hostile.seat.work,
          Header(size, type));
      EXPECT_THAT(hostile.failure.Get().message, HasSubstr("broke the protocol: "));
      EXPECT_EQ(heard.Get().size(), 1);
    }
  }
}

TEST(Hostile, AnswersThatNobodyAskedForAreDropped) {
  HostileFollower hostile;
  Say(hostile.seat.work, Header(0, 7));
  Heard<Answers> heard;
  hostile.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, {}, heard.Listener());  // its id is 1
  for (int i = 0; i < 3; ++i) Say(hostile.seat.work, Header(0, 7));
  const Answers answers = heard.Get();
  EXPECT_OK(answers[0]);
  EXPECT_FALSE(hostile.leader->failure());
}

TEST(Hostile, AFollowerThatAnnouncesMuchAndDiesLeavesNothing) {
  HostileFollower hostile;
  Say(hostile.seat.work, Header(kMaxPayload, 7));
  Say(hostile.seat.work, std::vector<std::byte>(1'000'000));
  hostile.seat.work = Descriptor();
  EXPECT_THAT(hostile.failure.Get().message, HasSubstr("is gone: connection closed"));
}

TEST(Hostile, AFollowerThatNeverStopsTalkingDoesNotKeepTheLeader) {
  HostileFollower hostile;
  std::vector<std::byte> talk;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<std::byte> frame = Header(0, 7);
    talk.insert(talk.end(), frame.begin(), frame.end());
  }
  std::atomic<bool> begun = false;
  auto talking = std::async(std::launch::async, [&] {
    while (WriteAll(hostile.seat.work, talk, Forever(), nullptr)) begun = true;
  });
  while (!begun) (void)poll(nullptr, 0, 1);
  hostile.leader.reset();
  talking.get();  // the leader's end is closed
}

TEST(Hostile, LeadersEndTheGroupAndNothingElse) {
  for (const Channel channel : {Channel::kCommands, Channel::kWork}) {
    for (const auto& [size, type] : std::vector<std::pair<std::uint64_t, std::uint32_t>>{
             {0, 0}, {0, 99}, {kMaxPayload + 1, 5}, {0, 7}, {0, 2}, {1, 9}}) {
      ASSERT_OK_AND_ASSIGN(const Listener listener,
                           Listener::Open({"127.0.0.1", 0}, Forever(), nullptr));
      const LeaderOptions options = TestLeaderOptions(2);
      auto gather = std::async(std::launch::async, [&] { return Gather(listener, options); });
      Heard<Error> failure;
      FollowerOptions follower_options = TestFollowerOptions(1, 2, listener.port());
      follower_options.on_failure = failure.Listener();
      ASSERT_OK_AND_ASSIGN(const auto follower, Follower::Join(follower_options));
      ASSERT_OK_AND_ASSIGN(const auto joined, gather.get());
      Say(channel == Channel::kCommands ? joined[0].commands : joined[0].work, Header(size, type));
      EXPECT_ERROR(follower->Next(), Code::kUnavailable, "broke the protocol: ");
      EXPECT_THAT(failure.Get().message, HasSubstr("broke the protocol"));
    }
  }
}

}  // namespace
}  // namespace syncline::ranks
