#include "ranks/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/socket.h>

#include "base/result_matchers.h"
#include "ranks/socket.h"
#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

using base::CancelToken;
using base::Code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

Deadline In(milliseconds time) { return steady_clock::now() + time; }

bool HasIpv6Loopback() { return Listener::Open({"::1", 0}, In(kForever), nullptr).has_value(); }

TEST(Address, IsReadInAllItsForms) {
  const std::vector<std::pair<std::string, Address>> cases = {
      {"127.0.0.1:29500", {"127.0.0.1", 29500}},
      {"localhost:0", {"localhost", 0}},
      {"node-3.cluster_a.example:65535", {"node-3.cluster_a.example", 65535}},
      {"[::1]:29500", {"::1", 29500}},
      {"[fe80::1%lo]:29500", {"fe80::1%lo", 29500}},
      {"[::ffff:10.0.0.1]:1", {"::ffff:10.0.0.1", 1}},
      {"[::]:0", {"::", 0}},
      // These have the port that is given beside them.
      {"::1", {"::1", 7}},
      {"[::1]", {"::1", 7}},
      {"fe80::1%lo", {"fe80::1%lo", 7}},
      {"localhost", {"localhost", 7}},
      {"10.0.0.1", {"10.0.0.1", 7}},
  };
  for (const auto& [text, expected] : cases) {
    ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(text, 7));
    EXPECT_EQ(address, expected) << text;
    ASSERT_OK_AND_ASSIGN(const Address again, ParseAddress(ToText(address)));
    EXPECT_EQ(again, address) << text;
  }
}

TEST(Address, OtherTextIsRefusedWithItsReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "it names no host"},
      {":29500", "it names no host"},
      {"localhost", "it has no port"},
      {"::1", "it has no port"},
      {"[::1]", "it has no port"},
      {"localhost:", "the port is \"\""},
      {"localhost:65536", "expected 0 to 65535"},
      {"localhost:-1", "expected 0 to 65535"},
      {"localhost:29500x", "expected 0 to 65535"},
      {"[::1]:", "the port is \"\""},
      {"::1:29500:x", "[IPv6 address]:port"},
      {"fe80::1%lo:29500", "[IPv6 address]:port"},
      {"fe80::1%", "[IPv6 address]:port"},
      {"tcp://127.0.0.1:29500", "[IPv6 address]:port"},
      {"[127.0.0.1]:29500", "[IPv6 address]:port"},
      {"[::1:29500", "[IPv6 address]:port"},
      {"[::1]29500", "[IPv6 address]:port"},
      {"a b:1", "no host name"},
      {std::string("a\0b:1", 5), "no host name"},
      {std::string(254, 'a') + ":1", "no host name"},
  };
  for (const auto& [text, reason] : cases) {
    const auto address = ParseAddress(text);
    SCOPED_TRACE(text);
    EXPECT_ERROR(address, Code::kInvalidArgument, reason);
    EXPECT_THAT(address.error().message, HasSubstr("\"" + text + "\" is no address"));
  }
}

TEST(Address, WhateverIsReadIsWrittenTheSame) {
  EXPECT_TRUE(rc::check([](const std::string& text) {
    const auto address = ParseAddress(text, 1);
    if (address) RC_ASSERT(ParseAddress(ToText(*address)).value() == *address);
  }));
  EXPECT_TRUE(rc::check([] {
    const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("[]:%.1af")));
    const auto address = ParseAddress(text, 1);
    if (address) RC_ASSERT(ParseAddress(ToText(*address)).value() == *address);
  }));
}

TEST(BR38, ANameThatDoesNotResolveIsNamed) {
  // No name server is asked for a name with such a long part.
  const Address address{std::string(64, 'x') + ".invalid", 29500};
  EXPECT_ERROR(Resolve(address, In(kForever)), Code::kUnavailable,
               "cannot resolve " + ToText(address) + ": ");
  FollowerOptions options = TestFollowerOptions(1, 2, 0);
  options.leader = address;
  options.join_timeout = milliseconds(300);
  EXPECT_ERROR(Follower::Join(options), Code::kTimeout, "cannot resolve " + ToText(address));
  LeaderOptions leader = TestLeaderOptions(2);
  leader.listen = address;
  EXPECT_ERROR(Leader::Listen(leader), Code::kUnavailable, "cannot resolve " + ToText(address));
}

TEST(BR38, ALookUpEndsWithItsDeadline) {
  EXPECT_ERROR(Resolve({"some-name", 1}, steady_clock::now()), Code::kTimeout,
               "cannot resolve some-name:1: timed out");
}

TEST(OwnHost, TowardsALoopbackIsThatLoopback) {
  // Nobody listens there, nor at the port 0.
  EXPECT_EQ(OwnHostTowards({"127.0.0.1", 1}, In(kForever)).value(), "127.0.0.1");
  EXPECT_EQ(OwnHostTowards({"localhost", 0}, In(kForever)).value(), "127.0.0.1");
  EXPECT_EQ(OwnHostTowards({"127.0.0.2", 1}, In(kForever)).value(), "127.0.0.1");  // not its own
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  EXPECT_EQ(OwnHostTowards({"::1", 1}, In(kForever)).value(), "::1");
  // An IPv4 address, whichever way it is written.
  EXPECT_EQ(OwnHostTowards({"::ffff:127.0.0.1", 1}, In(kForever)).value(), "127.0.0.1");
}

TEST(OwnHost, TowardsANameThatDoesNotResolveIsAnError) {
  const Address address{std::string(64, 'x') + ".invalid", 29500};
  EXPECT_ERROR(OwnHostTowards(address, In(kForever)), Code::kUnavailable,
               "cannot resolve " + ToText(address) + ": ");
  EXPECT_ERROR(OwnHostTowards({"some-name", 1}, steady_clock::now()), Code::kTimeout,
               "cannot resolve some-name:1: timed out");
}

TEST(OwnHost, TowardsAnAddressThatCannotBeReachedIsAnError) {
  // The address of all hosts, which no socket reaches that has not asked for it. A network without
  // ways: launch_test.cc.
  EXPECT_ERROR(OwnHostTowards({"255.255.255.255", 7}, In(kForever)), Code::kUnavailable,
               "no way to 255.255.255.255:7: ");
}

TEST(BR38, AClosedPortIsNamedWithinTheDeadline) {
  std::uint16_t port = 0;
  {
    ASSERT_OK_AND_ASSIGN(const Listener listener,
                         Listener::Open({"127.0.0.1", 0}, In(kForever), nullptr));
    port = listener.port();
  }
  const std::string name = "127.0.0.1:" + std::to_string(port);
  EXPECT_ERROR(Connect({"127.0.0.1", port}, In(kForever), nullptr), Code::kUnavailable,
               "cannot connect to " + name + ": Connection refused");
  FollowerOptions options = TestFollowerOptions(1, 2, port);
  options.join_timeout = milliseconds(300);
  EXPECT_ERROR(Follower::Join(options), Code::kTimeout,
               "rank 1 could not join within 0.3 s: cannot connect to " + name);
}

TEST(BR38, ALeaderThatDoesNotAnswerIsNamedWithinTheDeadline) {
  // Its queue is full, so it does not even take the connection.
  const Descriptor silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_OK_AND_ASSIGN(const auto endpoints, Resolve({"127.0.0.1", 0}, In(kForever)));
  const auto* any = reinterpret_cast<const sockaddr*>(endpoints[0].sockaddr.data());
  ASSERT_EQ(bind(silent.get(), any, static_cast<socklen_t>(endpoints[0].sockaddr.size())), 0);
  ASSERT_EQ(listen(silent.get(), 0), 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(getsockname(silent.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const Endpoint endpoint{
      AF_INET, {reinterpret_cast<std::byte*>(&bound), reinterpret_cast<std::byte*>(&bound) + size}};
  std::uint16_t port = 0;
  std::memcpy(&port, endpoint.sockaddr.data() + 2, 2);
  const Address address{"127.0.0.1", static_cast<std::uint16_t>((port << 8) | (port >> 8))};
  std::vector<Descriptor> filling;
  base::Result<Descriptor> last = Descriptor();
  while (last && filling.size() < 100) {
    last = Connect(address, In(milliseconds(200)), nullptr);
    if (last) filling.push_back(*std::move(last));
  }
  EXPECT_ERROR(last, Code::kTimeout, "cannot connect to " + ToText(address) + ": timed out");
  // It does not keep us from the other address of a name.
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  ASSERT_OK_AND_ASSIGN(const Listener other,
                       Listener::Open({"::1", address.port}, In(kForever), nullptr));
  EXPECT_OK(Connect({"localhost", address.port}, In(milliseconds(2000)), nullptr));
}

TEST(BR38, APortInUseIsNamed) {
  LeaderOptions options = TestLeaderOptions(2);
  ASSERT_OK_AND_ASSIGN(const auto first, Leader::Listen(options));
  ASSERT_NE(first->port(), 0);
  options.listen.port = first->port();
  EXPECT_ERROR(
      Leader::Listen(options), Code::kUnavailable,
      "cannot listen on 127.0.0.1:" + std::to_string(first->port()) + ": Address already in use");
  // Also where only one address of a name is taken.
  options.listen.host = "localhost";
  EXPECT_ERROR(Leader::Listen(options), Code::kUnavailable, "Address already in use");
}

TEST(BR38, AConnectionEndsWhenItIsCancelled) {
  CancelToken cancel;
  cancel.Cancel();
  FollowerOptions options = TestFollowerOptions(1, 2, 1);
  options.cancel = &cancel;
  EXPECT_ERROR(Follower::Join(options), Code::kCancelled, "cancelled");
  LeaderOptions leader = TestLeaderOptions(2);
  leader.cancel = &cancel;
  ASSERT_OK_AND_ASSIGN(const auto listening, Leader::Listen(leader));
  EXPECT_ERROR(listening->Join(), Code::kCancelled, "cancelled");
}

TEST(BR38, NobodyWaitsForEverForAPeerThatDoesNotCome) {
  LeaderOptions options = TestLeaderOptions(4);
  options.join_timeout = milliseconds(200);
  ASSERT_OK_AND_ASSIGN(const auto leader, Leader::Listen(options));
  EXPECT_ERROR(leader->Join(), Code::kTimeout, "after 0.2 s 3 of 4 ranks are missing: 1, 2, 3");
}

// A group whose leader listens at one address and whose followers look for it at others.
void Meet(const std::string& listen, const std::vector<std::string>& hosts) {
  const auto size = static_cast<std::uint32_t>(hosts.size() + 1);
  LeaderOptions options = TestLeaderOptions(size);
  ASSERT_OK_AND_ASSIGN(options.listen, ParseAddress(listen, 0));
  ASSERT_OK_AND_ASSIGN(const auto leader, Leader::Listen(options));
  ASSERT_NE(leader->port(), 0);
  std::vector<std::future<base::Result<std::unique_ptr<Follower>>>> joins;
  for (std::uint32_t rank = 1; rank < size; ++rank) {
    FollowerOptions follower = TestFollowerOptions(rank, size, 0);
    ASSERT_OK_AND_ASSIGN(follower.leader, ParseAddress(hosts[rank - 1], leader->port()));
    joins.push_back(
        std::async(std::launch::async, [follower] { return Follower::Join(follower); }));
  }
  SCOPED_TRACE(listen);
  EXPECT_OK(leader->Join());
  for (auto& join : joins) EXPECT_OK(join.get());
}

TEST(BR38, RanksMeetAtIpv4) {
  Meet("127.0.0.1", {"127.0.0.1", "localhost"});
  Meet("0.0.0.0", {"127.0.0.1", "localhost"});
}

TEST(BR38, RanksMeetAtIpv6) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  Meet("::1", {"::1", "[::1]"});
  Meet("[::1]", {"::1"});
  Meet("[::1]:0", {"::1", "localhost"});
}

TEST(BR38, RanksMeetAtANameOfBothFamilies) {
  Meet("localhost", {"localhost", "127.0.0.1"});
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  Meet("localhost", {"::1", "127.0.0.1", "localhost"});
}

TEST(BR38, RanksMeetAtAnyAddressOfBothFamilies) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  Meet("::", {"127.0.0.1", "::1"});
}

TEST(BR38, AnIpv4PeerOfAnIpv6SocketHasItsIpv4Address) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this host has no IPv6";
  LeaderOptions options = TestLeaderOptions(2);
  options.listen.host = "::";
  const TestGroup group = MakeGroup(options);
  EXPECT_EQ(group.leader->peers()[0].host, "127.0.0.1");
}

TEST(BR38, AZoneThatIsNotThereIsNamed) {
  const Address address{"fe80::1%nowhere9", 29500};
  EXPECT_ERROR(Connect(address, In(kForever), nullptr), Code::kUnavailable,
               "[fe80::1%nowhere9]:29500");
}

}  // namespace
}  // namespace syncline::ranks
