// Commands, questions, ends and failures of a group whose ranks are objects of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <thread>

#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using base::Fail;
using testing::HasSubstr;

// Serves a follower until its end: `serve` is called for each command.
class Servant {
 public:
  Servant(Follower& follower, std::function<void(Follower&, Message)> serve)
      : end_(std::async(std::launch::async, [&follower, serve = std::move(serve)] {
          while (true) {
            auto next = follower.Next();
            if (!next) return next.error().message;
            if (!*next) return std::string("end");
            serve(follower, **std::move(next));
          }
        })) {}
  // How Next() ended: "end" or an error.
  std::string End() { return end_.get(); }

 private:
  std::future<std::string> end_;
};

TEST(Group, PeersAreKnownByRank) {
  TestGroup group = MakeGroup(4);
  ASSERT_EQ(group.leader->peers().size(), 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Peer& peer = group.leader->peers()[i];
    EXPECT_EQ(peer.rank, i + 1);
    EXPECT_EQ(peer.node_rank, 0);
    EXPECT_EQ(peer.host, "127.0.0.1");
    EXPECT_EQ(peer.pid, getpid());
  }
}

TEST(Group, OfOneHasNobodyToAsk) {
  TestGroup group = MakeGroup(1);
  Heard<Answers> answers;
  group.leader->Command(1, Bytes("x"));
  group.leader->CommandAndAsk(1, Bytes("x"), answers.Listener());
  EXPECT_TRUE(answers.Get().empty());
  group.leader->Shutdown();
  EXPECT_FALSE(group.leader->failure());
}

TEST(Group, TenThousandCommandsReachSevenFollowersInOrder) {
  constexpr std::uint32_t kCount = 10'000;
  TestGroup group = MakeGroup(8);
  std::array<std::vector<std::uint32_t>, 7> seen;
  std::vector<std::unique_ptr<Servant>> servants;
  for (std::uint32_t rank = 1; rank < 8; ++rank) {
    servants.push_back(std::make_unique<Servant>(
        group.follower(rank), [&list = seen[rank - 1]](Follower&, const Message& message) {
          EXPECT_EQ(Text(message.payload), "step " + std::to_string(message.kind));
          list.push_back(message.kind);
        }));
  }
  for (std::uint32_t i = 0; i < kCount; ++i) {
    group.leader->Command(i, Bytes("step " + std::to_string(i)));
  }
  group.leader->Shutdown();
  for (auto& servant : servants) EXPECT_EQ(servant->End(), "end");
  std::vector<std::uint32_t> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& list : seen) EXPECT_EQ(list, expected);
  EXPECT_FALSE(group.leader->failure());
}

TEST(Group, CommandsOfSeveralThreadsHaveOneOrderForAll) {
  TestGroup group = MakeGroup(4);
  std::array<std::vector<std::uint32_t>, 3> seen;
  std::vector<std::unique_ptr<Servant>> servants;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    servants.push_back(std::make_unique<Servant>(
        group.follower(rank), [&list = seen[rank - 1]](Follower&, const Message& message) {
          list.push_back(message.kind);
        }));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t i = 0; i < 500; ++i) {
        // Of different sizes, so that some are written by the caller and some are queued.
        group.leader->Command(thread * 1000 + i, std::vector<std::byte>(i % 7 == 0 ? 400'000 : i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  group.leader->Shutdown();
  for (auto& servant : servants) EXPECT_EQ(servant->End(), "end");
  EXPECT_EQ(seen[0].size(), 2000);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

TEST(Group, WhatIsCommandedWhileAFollowerIsBusyWaitsForIt) {
  TestGroup group = MakeGroup(2);
  // More than the network holds, and nobody calls Next() meanwhile.
  for (std::uint32_t i = 0; i < 40; ++i) {
    group.leader->Command(i, std::vector<std::byte>(1 << 20, std::byte{7}));
  }
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto message, group.follower(1).Next());
    ASSERT_TRUE(message);
    EXPECT_EQ(message->kind, i);
    EXPECT_EQ(message->payload, std::vector<std::byte>(1 << 20, std::byte{7}));
  }
  EXPECT_FALSE(group.leader->failure());
}

TEST(Group, ACommandMayBeAnsweredByAll) {
  TestGroup group = MakeGroup(4);
  std::vector<std::unique_ptr<Servant>> servants;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    servants.push_back(std::make_unique<Servant>(
        group.follower(rank), [rank](Follower& follower, const Message& message) {
          follower.Reply(message.id, Bytes(Text(message.payload) + std::to_string(rank)));
        }));
  }
  Heard<Answers> heard;
  group.leader->Command(1, Bytes("not asked "));  // its replies are ignored
  group.leader->CommandAndAsk(2, Bytes("rank "), heard.Listener());
  const Answers answers = heard.Get();
  ASSERT_EQ(answers.size(), 3);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_OK(answers[i]);
    EXPECT_EQ(Text(*answers[i]), "rank " + std::to_string(i + 1));
  }
  group.leader->Shutdown();
}

TEST(Group, AnAskOvertakesCommandsAndGoesOnlyToItsRanks) {
  TestGroup group = MakeGroup(4);
  std::atomic<int> asked = 0;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    Follower& follower = group.follower(rank);
    follower.OnWork([&, rank](const Message& message) {
      ++asked;
      follower.Reply(message.id, Bytes(std::to_string(rank * message.kind)));
    });
  }
  group.leader->Command(1, Bytes("nobody takes this before the end"));
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 2>{3, 1}, 100, Bytes("?"), heard.Listener());
  const Answers answers = heard.Get();
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(Text(answers[0].value()), "300");
  EXPECT_EQ(Text(answers[1].value()), "100");
  EXPECT_EQ(asked, 2);
  ASSERT_OK_AND_ASSIGN(const auto message, group.follower(2).Next());
  EXPECT_EQ(message.value().kind, 1);
}

TEST(Group, WorkThatComesBeforeItsHandlerWaits) {
  TestGroup group = MakeGroup(2);
  Heard<Answers> first;
  Heard<Answers> second;
  group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, Bytes("a"), first.Listener());
  group.leader->Ask(std::array<std::uint32_t, 1>{1}, 2, Bytes("b"), second.Listener());
  Follower& follower = group.follower(1);
  follower.OnWork([&](Message message) { follower.Reply(message.id, std::move(message.payload)); });
  EXPECT_EQ(Text(first.Get()[0].value()), "a");
  EXPECT_EQ(Text(second.Get()[0].value()), "b");
}

TEST(Group, AnAskOfWhoIsNoFollowerIsRefused) {
  TestGroup group = MakeGroup(3);
  for (const std::vector<std::uint32_t>& ranks :
       {std::vector<std::uint32_t>{0}, {3}, {1, 1}, {1, 2, 7}}) {
    Heard<Answers> heard;
    group.leader->Ask(ranks, 1, {}, heard.Listener());
    const Answers answers = heard.Get();
    ASSERT_EQ(answers.size(), ranks.size());
    for (const auto& answer : answers) EXPECT_EQ(answer.error().code, Code::kInvalidArgument);
  }
}

TEST(Group, TheFirstAnswerOfARankCounts) {
  TestGroup group = MakeGroup(3);
  std::promise<std::uint64_t> id;
  group.follower(1).OnWork([&](const Message& message) { id.set_value(message.id); });
  group.follower(2).OnWork([](const Message&) {});
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 2>{1, 2}, 1, {}, heard.Listener());
  const std::uint64_t asked = id.get_future().get();
  group.follower(1).Reply(asked, Bytes("first"));
  group.follower(1).Reply(asked, Bytes("second"));
  // Answers of one rank come in order, so this one comes after both.
  Heard<Answers> later;
  group.leader->CommandAndAsk(2, {}, later.Listener());
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const auto command, group.follower(rank).Next());
    group.follower(rank).Reply(command.value().id, {});
  }
  EXPECT_EQ(later.Get().size(), 2);
  EXPECT_FALSE(heard.was_called());
  group.follower(2).Reply(asked, Bytes("other"));
  const Answers answers = heard.Get();
  EXPECT_EQ(Text(answers[0].value()), "first");
  EXPECT_EQ(Text(answers[1].value()), "other");
}

TEST(Group, LargePayloadsGoBothWaysAtOnce) {
  constexpr std::size_t kSize = 64 << 20;
  TestGroup group = MakeGroup(3);
  std::vector<std::byte> payload(kSize);
  for (std::size_t i = 0; i < kSize; ++i)
    payload[i] = static_cast<std::byte>((i * 2654435761u) >> 24);
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    Follower& follower = group.follower(rank);
    follower.OnWork(
        [&](Message message) { follower.Reply(message.id, std::move(message.payload)); });
  }
  Heard<Answers> heard;
  Heard<Answers> again;
  group.leader->Ask(std::array<std::uint32_t, 2>{1, 2}, 1, payload, heard.Listener());
  group.leader->Ask(std::array<std::uint32_t, 2>{1, 2}, 1, payload, again.Listener());
  for (const Answers& answers : {heard.Get(), again.Get()}) {
    ASSERT_EQ(answers.size(), 2);
    for (const auto& answer : answers) EXPECT_TRUE(answer.value() == payload);
  }
  group.leader->Command(1, payload);
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const auto message, group.follower(rank).Next());
    EXPECT_TRUE(message.value().payload == payload);
  }
  EXPECT_FALSE(group.leader->failure());
}

TEST(BR37, AnErrorOfOneRankReachesTheCallerAndARetryWorks) {
  TestGroup group = MakeGroup(4);
  std::atomic<bool> broken = true;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    Follower& follower = group.follower(rank);
    follower.OnWork([&, rank](const Message& message) {
      if (rank == 1 && broken) {
        follower.Reply(message.id, Fail(Code::kChecksumMismatch, "chunk 3 is damaged"));
      } else {
        follower.Reply(message.id, Bytes("done"));
      }
    });
  }
  const std::array<std::uint32_t, 3> all = {1, 2, 3};
  Heard<Answers> first;
  group.leader->Ask(all, 1, Bytes("load"), first.Listener());
  const Answers failed = first.Get();
  EXPECT_ERROR(failed[0], Code::kChecksumMismatch, "rank 1 (host 127.0.0.1): chunk 3 is damaged");
  EXPECT_OK(failed[1]);
  EXPECT_OK(failed[2]);

  broken = false;
  Heard<Answers> second;
  group.leader->Ask(all, 1, Bytes("load"), second.Listener());
  for (const auto& answer : second.Get()) EXPECT_OK(answer);
  EXPECT_FALSE(group.leader->failure());
}

TEST(Group, TheFirstLostRankEndsAllAsksAndIsReportedByAll) {
  TestGroup group = MakeGroup(4);
  for (std::uint32_t rank = 2; rank < 4; ++rank) {
    Follower& follower = group.follower(rank);
    follower.OnWork([&, rank](const Message& message) {
      if (rank == 2) follower.Reply(message.id, Bytes("done"));  // rank 3 never answers
    });
  }
  Heard<Answers> asked;
  Heard<Answers> commanded;
  group.leader->Ask(std::array<std::uint32_t, 3>{1, 2, 3}, 1, {}, asked.Listener());
  group.leader->CommandAndAsk(1, {}, commanded.Listener());
  group.followers[0].reset();

  const Error error = group.leader_failure.Get();
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("rank 1 (host 127.0.0.1, pid "));
  EXPECT_THAT(error.message, HasSubstr(") is gone: connection closed"));
  const Answers answers = asked.Get();
  EXPECT_EQ(answers[0].error().message, error.message);
  EXPECT_EQ(answers[2].error().message, error.message);
  for (const auto& answer : commanded.Get()) EXPECT_EQ(answer.error().message, error.message);
  EXPECT_EQ(group.leader->failure().value().message, error.message);
  for (std::uint32_t rank = 2; rank < 4; ++rank) {
    EXPECT_EQ(group.follower_failures[rank - 1].Get().message, error.message);
    auto next = group.follower(rank).Next();
    while (next && *next) next = group.follower(rank).Next();
    EXPECT_ERROR(next, Code::kUnavailable, error.message);
    group.follower(rank).Reply(1, Bytes("too late"));
  }
  EXPECT_FALSE(group.follower_failures[0].was_called());

  Heard<Answers> later;
  group.leader->CommandAndAsk(1, {}, later.Listener());
  for (const auto& answer : later.Get()) EXPECT_EQ(answer.error().message, error.message);
}

TEST(Group, AWaitingFollowerHearsThatTheLeaderIsGone) {
  TestGroup group = MakeGroup(3);
  Servant servant(group.follower(1), [](Follower&, const Message&) {});
  group.leader.reset();
  EXPECT_THAT(servant.End(), HasSubstr("is gone: connection closed"));
  EXPECT_THAT(group.follower_failures[1].Get().message, HasSubstr("the leader (127.0.0.1:"));
}

TEST(Group, WhoGivesUpSaysWhy) {
  TestGroup group = MakeGroup(3);
  Servant servant(group.follower(2), [](Follower&, const Message&) {});
  group.follower(2).GiveUp({Code::kLimitExceeded, "out of memory"});
  EXPECT_EQ(servant.End(), "rank 2 has failed: out of memory");
  const std::string expected = group.leader_failure.Get().message;
  EXPECT_THAT(expected, HasSubstr("rank 2 (host 127.0.0.1, pid "));
  EXPECT_THAT(expected, HasSubstr(") has failed: out of memory"));
  EXPECT_EQ(group.follower_failures[0].Get().message, expected);
}

TEST(Group, WhoGivesUpMayEndWhenItHearsOfIt) {
  LeaderOptions leader_options = TestLeaderOptions(2);
  ASSERT_OK_AND_ASSIGN(const auto leader, Leader::Listen(leader_options));
  Heard<bool> known;
  FollowerOptions options = TestFollowerOptions(1, 2, leader->port());
  options.on_failure = [&, tell = known.Listener()](const base::Error&) {
    tell(leader->failure().has_value());
  };
  auto joining = std::async(std::launch::async, [&] { return Follower::Join(options); });
  ASSERT_OK(leader->Join());
  ASSERT_OK_AND_ASSIGN(const auto follower, joining.get());
  follower->GiveUp({Code::kLimitExceeded, "out of memory"});
  EXPECT_TRUE(known.Get());
}

TEST(Group, WhenTheLeaderGivesUpAllHearWhy) {
  TestGroup group = MakeGroup(3);
  Heard<Answers> heard;
  group.leader->CommandAndAsk(1, {}, heard.Listener());
  group.leader->GiveUp({Code::kInternal, "a fault"});
  const std::string expected = "the leader has failed: a fault";
  EXPECT_EQ(group.leader_failure.Get().message, expected);
  EXPECT_EQ(heard.Get()[0].error().message, expected);
  group.leader.reset();  // at once: the farewell still arrives
  for (auto& failure : group.follower_failures) EXPECT_EQ(failure.Get().message, expected);
}

TEST(Group, WorkWaitsForTheNextHandler) {
  TestGroup group = MakeGroup(2);
  Follower& follower = group.follower(1);
  const auto ask = [&](const std::string& text) {
    Heard<Answers> heard;
    group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, Bytes(text), heard.Listener());
    return heard;
  };
  const auto answer_as = [&](const std::string& name) {
    return [&follower, name](const Message& message) {
      follower.Reply(message.id, Bytes(name + Text(message.payload)));
    };
  };
  follower.OnWork(answer_as("first "));
  EXPECT_EQ(Text(ask("a").Get()[0].value()), "first a");
  follower.OnWork(nullptr);
  Heard<Answers> waiting = ask("b");
  follower.OnWork(nullptr);
  follower.OnWork(answer_as("second "));
  EXPECT_EQ(Text(waiting.Get()[0].value()), "second b");
}

TEST(Group, AShutdownIsNoFailure) {
  TestGroup group = MakeGroup(3);
  group.follower(1).OnWork([](const Message&) {});
  Heard<Answers> heard;
  group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, {}, heard.Listener());
  group.leader->Command(5, Bytes("last"));
  const auto begin = std::chrono::steady_clock::now();
  group.leader->Shutdown();
  // All have heard it, though nobody is in Next(): otherwise it takes until the silence limit.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, TestLeaderOptions(3).silence / 2);
  const Answers answers = heard.Get();
  EXPECT_ERROR(answers[0], Code::kCancelled, "the group was shut down");
  group.leader->Command(6, Bytes("dropped"));
  group.leader.reset();
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const auto last, group.follower(rank).Next());
    EXPECT_EQ(last.value().kind, 5);
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK_AND_ASSIGN(const auto end, group.follower(rank).Next());
      EXPECT_FALSE(end);
    }
    EXPECT_FALSE(group.follower(rank).failure());
  }
  group.followers.clear();
  EXPECT_FALSE(group.leader_failure.was_called());
  for (auto& failure : group.follower_failures) EXPECT_FALSE(failure.was_called());
}

TEST(Group, CallbacksMayCallTheLeader) {
  TestGroup group = MakeGroup(2);
  Follower& follower = group.follower(1);
  follower.OnWork([&](Message message) { follower.Reply(message.id, std::move(message.payload)); });
  Heard<Answers> last;
  std::function<void(int)> ask = [&](int left) {
    group.leader->Ask(std::array<std::uint32_t, 1>{1}, 1, Bytes(std::to_string(left)),
                      [&, left](Answers answers) {
                        EXPECT_EQ(Text(answers[0].value()), std::to_string(left));
                        left == 0 ? last.Listener()(std::move(answers)) : ask(left - 1);
                      });
  };
  ask(100);
  EXPECT_EQ(last.Get().size(), 1);
}

TEST(Group, DestructionEndsOpenAsks) {
  TestGroup group = MakeGroup(2);
  Heard<Answers> heard;
  group.leader->CommandAndAsk(1, {}, heard.Listener());
  group.leader.reset();
  EXPECT_TRUE(heard.was_called());
  const Answers answers = heard.Get();
  EXPECT_ERROR(answers[0], Code::kCancelled, "the group was ended");
}

TEST(BR38, TwoGroupsOnOneHostDoNotClash) {
  TestGroup a = MakeGroup(3);
  TestGroup b = MakeGroup(3);
  EXPECT_NE(a.leader->port(), b.leader->port());
  a.leader->Command(1, Bytes("a"));
  b.leader->Command(1, Bytes("b"));
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(Text(a.follower(rank).Next().value()->payload), "a");
    EXPECT_EQ(Text(b.follower(rank).Next().value()->payload), "b");
  }
}

}  // namespace
}  // namespace syncline::ranks
