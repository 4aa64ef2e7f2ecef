// What launch_test.cc starts as ranks: a program of its own that does what its arguments say, and
// says by its exit status how it went.
//
//   waits FILE                     writes its pid and waits for its end
//   launches FILE                  launches one that waits, and waits too
//   follows RANK PORT EXPECTED     follows a leader of 4 ranks until the end of the group
//   gives-up RANK PORT             follows, gives up at once, and ends when it hears of it
//   finds-no-way                   looks for ways out of a network that has only the loopback
//   meets-at-link-local            a leader and two followers at fe80::1 of a network of its own
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "ranks/launch.h"
#include "ranks/socket.h"
#include "ranks/test_group.h"

namespace syncline::ranks {
namespace {

constexpr int kGroupFailed = 1;
constexpr int kWrong = 9;  // it did not see what it should have seen
constexpr int kSkipped = 77;

int Wait(const std::string& path) {
  if (!ExitWithParent()) return kWrong;
  std::ofstream(path) << getpid() << " end\n";
  while (true) pause();
}

int Launch(const std::string& path) {
  const auto launcher = Launcher::Start(
      {{.rank = 1, .path = "/proc/self/exe", .arguments = {"waits", path}, .environment = {}}},
      nullptr);
  while (launcher) pause();
  return kWrong;
}

// 0: an orderly end. kGroupFailed: with the text that was expected.
int Follow(std::uint32_t rank, std::uint16_t port, const std::string& expected) {
  if (!ExitWithParent()) return kWrong;
  auto joined = Follower::Join(TestFollowerOptions(rank, 4, port));
  if (!joined) return kWrong;
  Follower& follower = **joined;
  follower.OnWork([&](Message message) {
    if (message.kind == 7) return;  // no answer to that
    follower.Reply(message.id, std::move(message.payload));
  });
  while (true) {
    const auto next = follower.Next();
    if (!next) return next.error().message.contains(expected) ? kGroupFailed : kWrong;
    if (!*next) return 0;
    follower.Reply((*next)->id, Bytes(std::to_string(rank)));
  }
}

int GiveUp(std::uint32_t rank, std::uint16_t port) {
  if (!ExitWithParent()) return kWrong;
  FollowerOptions options = TestFollowerOptions(rank, 2, port);
  options.on_failure = [](const base::Error&) { _exit(kGroupFailed); };
  auto joined = Follower::Join(std::move(options));
  if (!joined) return kWrong;
  (*joined)->GiveUp({base::Code::kNotFound, "no model"});
  while (true) pause();
}

// A network of its own, in which the loopback has the address fe80::1.
bool EnterLinkLocalNetwork() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const Descriptor control(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq interface{};
  const std::string name = "lo";
  name.copy(interface.ifr_name, name.size());
  if (ioctl(control.get(), SIOCGIFFLAGS, &interface) != 0) return false;
  interface.ifr_flags = static_cast<short>(interface.ifr_flags | IFF_UP);
  if (ioctl(control.get(), SIOCSIFFLAGS, &interface) != 0) return false;
  struct {
    in6_addr address{};
    std::uint32_t prefix = 64;
    int interface = 0;
  } request;  // in6_ifreq of the kernel
  request.address.s6_addr[0] = 0xfe;
  request.address.s6_addr[1] = 0x80;
  request.address.s6_addr[15] = 1;
  request.interface = static_cast<int>(if_nametoindex("lo"));
  return ioctl(control.get(), SIOCSIFADDR, &request) == 0;
}

int FindNoWay() {
  if (!EnterLinkLocalNetwork()) return kSkipped;
  const Deadline deadline = std::chrono::steady_clock::now() + kForever;
  const auto own = OwnHostTowards({"10.0.0.1", 7}, deadline);
  return !own && own.error().code == base::Code::kUnavailable &&
                 own.error().message == "no way to 10.0.0.1:7: Network is unreachable"
             ? 0
             : kWrong;
}

int MeetAtLinkLocal() {
  if (!EnterLinkLocalNetwork()) return kSkipped;
  LeaderOptions options = TestLeaderOptions(3);
  options.listen = ParseAddress("[fe80::1%lo]:0").value();
  auto leader = Leader::Listen(options);
  // The kernel takes a moment until the new address may be used.
  for (int i = 0; i < 1000 && !leader; ++i) {
    (void)poll(nullptr, 0, 5);
    leader = Leader::Listen(options);
  }
  if (!leader) return kWrong;
  std::vector<std::future<base::Result<std::unique_ptr<Follower>>>> joins;
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    FollowerOptions follower = TestFollowerOptions(rank, 3, 0);
    follower.leader = ParseAddress("fe80::1%lo", (*leader)->port()).value();
    joins.push_back(
        std::async(std::launch::async, [follower] { return Follower::Join(follower); }));
  }
  bool ok = (*leader)->Join().has_value();
  for (auto& join : joins) ok = join.get().has_value() && ok;
  ok = ok && (*leader)->peers()[0].host == "fe80::1%lo";
  const Deadline deadline = std::chrono::steady_clock::now() + kForever;
  const auto own = OwnHostTowards({"fe80::1%lo", 7}, deadline);
  return ok && own && *own == "fe80::1%lo" ? 0 : kWrong;
}

int Run(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "waits") return Wait(arguments.at(1));
  if (what == "launches") return Launch(arguments.at(1));
  if (what == "follows") {
    return Follow(static_cast<std::uint32_t>(std::stoul(arguments.at(1))),
                  static_cast<std::uint16_t>(std::stoul(arguments.at(2))), arguments.at(3));
  }
  if (what == "gives-up") {
    return GiveUp(static_cast<std::uint32_t>(std::stoul(arguments.at(1))),
                  static_cast<std::uint16_t>(std::stoul(arguments.at(2))));
  }
  if (what == "finds-no-way") return FindNoWay();
  if (what == "meets-at-link-local") return MeetAtLinkLocal();
  return kWrong;
}

}  // namespace
}  // namespace syncline::ranks

int main(int argc, char** argv) {
  return syncline::ranks::Run(std::vector<std::string>(argv + 1, argv + argc));
}
