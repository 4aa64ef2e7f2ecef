// The leader's side of the rendezvous. One thread, the caller's, serves all connections with poll:
//
// 1. Who connects is a guest: it may send one hello, of bounded size and before a deadline. What
//    does not look like a hello is dropped. Of too many guests the oldest is dropped.
// 2. A hello with the right token and the right numbers gives the guest its place: rank and
//    channel. Any other is answered with the reason, and the guest is dropped.
// 3. A place whose connection ends is free again, so a follower may die and come back until the
//    group is complete. A place that is taken is refused to others.
// 4. When both connections of all ranks are in their places, all are welcomed. From then on the end
//    of a connection is the end of the group.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "ranks/rendezvous.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using base::Fail;
using base::LogLevel;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxGuests = 256;
constexpr milliseconds kHelloTime{5000};
constexpr milliseconds kWelcomeTime{1000};
constexpr milliseconds kPollTime{20};  // how late the cancel token and deadlines are seen
constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kMaxLines = 100;   // of the log, about strangers
constexpr std::size_t kMaxRefusals = 4;  // that the last error names
constexpr std::size_t kMaxShownText = 200;

struct Guest {
  Descriptor socket;
  std::string host;
  Deadline until;
  std::vector<std::byte> received;
};

struct Place {
  Descriptor commands;
  Descriptor work;
  Hello hello;  // of the follower whose connections they are
  std::string host;

  Descriptor& at(Channel channel) { return channel == Channel::kCommands ? commands : work; }
  bool taken() const { return commands.open() || work.open(); }
  bool complete() const { return commands.open() && work.open(); }
};

// Takes the same time wherever the texts differ.
bool SameToken(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(a[i] ^ other));
  }
  return difference == 0;
}

// Has the peer closed? Nothing else may come from a guest that has its place.
bool HasEnded(const Descriptor& socket) {
  std::byte ignored{};
  const ssize_t count = recv(socket.get(), &ignored, 1, MSG_PEEK | MSG_DONTWAIT);
  return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

std::string_view Shown(std::string_view text) { return text.substr(0, kMaxShownText); }

class Gathering {
 public:
  Gathering(const Listener& listener, const LeaderOptions& options)
      : listener_(listener),
        options_(options),
        deadline_(steady_clock::now() + options.join_timeout),
        places_(options.size) {}

  Result<std::vector<Joined>> Run() {
    while (!complete()) {
      if (options_.cancel != nullptr) SYNCLINE_TRY(options_.cancel->Check());
      if (steady_clock::now() >= deadline_) return std::unexpected(Missing());
      Await();
      FreePlaces();  // first, for those who come back
      AcceptAll();
      ReadGuests();
    }
    return WelcomeAll();
  }

 private:
  bool complete() const {
    return std::ranges::all_of(places_.begin() + 1, places_.end(), &Place::complete);
  }

  void Await() {
    std::vector<pollfd> states;
    const auto add = [&](const Descriptor& socket) {
      if (socket.open()) states.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    };
    for (const Descriptor& socket : listener_.sockets()) add(socket);
    for (const Guest& guest : guests_) add(guest.socket);
    for (const Place& place : places_) {
      add(place.commands);
      add(place.work);
    }
    (void)poll(states.data(), states.size(), static_cast<int>(kPollTime.count()));
  }

  void AcceptAll() {
    for (const Descriptor& socket : listener_.sockets()) {
      for (std::size_t i = 0; i < kMaxGuests; ++i) {
        auto accepted = Accept(socket);
        if (!accepted) {
          Say(accepted.error().message);
          std::this_thread::sleep_for(kPollTime);  // others give some back in time
        }
        if (!accepted || !accepted->socket.open()) break;
        if (guests_.size() == kMaxGuests) {
          Say(fmt::format("{} is dropped: too many have connected", guests_.front().host));
          guests_.pop_front();
        }
        guests_.push_back(Guest{.socket = std::move(accepted->socket),
                                .host = std::move(accepted->host),
                                .until = steady_clock::now() + kHelloTime,
                                .received = {}});
      }
    }
  }

  void ReadGuests() {
    std::deque<Guest> waiting;
    for (Guest& guest : guests_) {
      const Result<std::optional<Hello>> hello = Read(guest);
      if (!hello) {
        if (hello.error().code == Code::kIncompatible) {
          Refuse(guest, hello.error());
        } else {
          Say(fmt::format("{} is dropped: {}", guest.host, hello.error().message));
        }
      } else if (*hello) {
        Admit(std::move(guest), **hello);
      } else {
        waiting.push_back(std::move(guest));
      }
    }
    guests_ = std::move(waiting);
  }

  // Nothing: its hello is not complete.
  static Result<std::optional<Hello>> Read(Guest& guest) {
    std::array<std::byte, kReadBytes> buffer;
    while (true) {
      const ssize_t count = recv(guest.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count <= 0) {
        const bool blocked = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (count < 0 && errno == EINTR) continue;
        if (!blocked) return Fail(Code::kUnavailable, IoFaultText(count == 0 ? 0 : errno));
        if (steady_clock::now() < guest.until) return std::nullopt;
        return Fail(Code::kTimeout, "it did not say what it wants");
      }
      guest.received.insert(guest.received.end(), buffer.begin(), buffer.begin() + count);
      // Ends at the latest when more has come than a hello may have.
      SYNCLINE_ASSIGN(std::optional<Hello> hello, DecodeHello(guest.received));
      if (hello) return hello;
    }
  }

  void Admit(Guest guest, const Hello& hello) {
    if (const Status fits = CheckHello(hello); !fits) return Refuse(guest, fits.error(), &hello);
    Place& place = places_[hello.group.rank];
    if (place.taken() && place.hello.chance != hello.chance) {
      const Error error{Code::kAlreadyExists,
                        fmt::format("rank {} is there already (host {}, pid {})", hello.group.rank,
                                    place.host, place.hello.pid)};
      return Refuse(guest, error, &hello);
    }
    if (place.at(hello.channel).open()) {
      return Refuse(guest, {Code::kAlreadyExists, "this channel is connected already"}, &hello);
    }
    if (!place.taken()) {
      place.hello = hello;
      place.host = guest.host;
    }
    place.at(hello.channel) = std::move(guest.socket);
    if (place.complete()) {
      base::Log(LogLevel::kInfo,
                fmt::format("ranks: rank {} is there: host {} ({}), pid {}", hello.group.rank,
                            place.host, Shown(place.hello.host), place.hello.pid));
    }
  }

  Status CheckHello(const Hello& hello) const {
    if (!SameToken(options_.token, hello.token)) {
      return Fail(Code::kPermissionDenied, "it does not have the token of this group");
    }
    const Group& group = hello.group;
    if (group.size != options_.size || group.nodes != options_.nodes) {
      return Fail(Code::kIncompatible,
                  fmt::format("it is of a group of {} ranks on {} nodes, expected {} on {}",
                              group.size, group.nodes, options_.size, options_.nodes));
    }
    if (group.rank == 0 || group.rank >= options_.size) {
      return Fail(Code::kIncompatible, fmt::format("rank {} is out of range: expected 1 to {}",
                                                   group.rank, options_.size - 1));
    }
    if (group.node_rank >= options_.nodes) {
      return Fail(Code::kIncompatible, fmt::format("node rank {} is out of range: expected 0 to {}",
                                                   group.node_rank, options_.nodes - 1));
    }
    if (hello.fingerprint != options_.fingerprint) {
      return Fail(Code::kIncompatible,
                  fmt::format("its model or options are \"{}\", expected \"{}\"",
                              Shown(hello.fingerprint), Shown(options_.fingerprint)));
    }
    return {};
  }

  // Tells the guest, as far as the network takes it at once, and drops it.
  void Refuse(const Guest& guest, const Error& error, const Hello* hello = nullptr) {
    const std::vector<std::byte> payload = Encode(error);
    const FrameHeaderBytes header =
        Encode(FrameHeader{.size = payload.size(), .type = FrameType::kRefused});
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    (void)send(guest.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // A follower comes with two connections: one line is enough.
    if (hello != nullptr && std::exchange(last_refused_, hello->chance) == hello->chance) return;
    const std::string name =
        hello == nullptr
            ? guest.host
            : fmt::format("rank {} (host {}, pid {})", hello->group.rank, guest.host, hello->pid);
    std::string line = fmt::format("{} is refused: {}", name, error.message);
    Say(line);
    if (refusals_.size() == kMaxRefusals) refusals_.pop_front();
    refusals_.push_back(std::move(line));
  }

  void FreePlaces() {
    for (Place& place : places_) {
      const bool ended = (place.commands.open() && HasEnded(place.commands)) ||
                         (place.work.open() && HasEnded(place.work));
      if (!ended) continue;
      Say(fmt::format("rank {} (host {}, pid {}) is gone before the group was complete",
                      place.hello.group.rank, place.host, place.hello.pid));
      place = Place{};
    }
  }

  Error Missing() const {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 1; rank < places_.size(); ++rank) {
      if (!places_[rank].complete()) missing.push_back(rank);
    }
    std::string text =
        fmt::format("after {:.1f} s {} of {} ranks {} missing: {}",
                    std::chrono::duration<double>(options_.join_timeout).count(), missing.size(),
                    places_.size(), missing.size() == 1 ? "is" : "are", fmt::join(missing, ", "));
    if (!refusals_.empty()) text += fmt::format(" ({})", fmt::join(refusals_, "; "));
    return {Code::kTimeout, std::move(text)};
  }

  Result<std::vector<Joined>> WelcomeAll() {
    const std::vector<std::byte> payload =
        Encode(Welcome{.heartbeat_ms = static_cast<std::uint32_t>(options_.heartbeat.count()),
                       .silence_ms = static_cast<std::uint32_t>(options_.silence.count())});
    const FrameHeaderBytes header =
        Encode(FrameHeader{.size = payload.size(), .type = FrameType::kWelcome});
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    std::vector<Joined> followers;
    for (Place& place : std::span(places_).subspan(1)) {
      const Deadline until = steady_clock::now() + kWelcomeTime;
      // Who is gone again is noticed as soon as the connections are watched.
      (void)WriteAll(place.commands, frame, until, nullptr);
      (void)WriteAll(place.work, frame, until, nullptr);
      followers.push_back(Joined{.peer = {.rank = place.hello.group.rank,
                                          .node_rank = place.hello.group.node_rank,
                                          .host = std::move(place.host),
                                          .pid = place.hello.pid},
                                 .commands = std::move(place.commands),
                                 .work = std::move(place.work)});
    }
    return followers;
  }

  void Say(std::string_view line) {
    if (lines_ < kMaxLines) base::Log(LogLevel::kWarning, fmt::format("ranks: {}", line));
    if (++lines_ == kMaxLines) base::Log(LogLevel::kWarning, "ranks: no more such lines");
  }

  const Listener& listener_;
  const LeaderOptions& options_;
  const Deadline deadline_;
  std::vector<Place> places_;  // by rank; that of rank 0 stays empty
  std::deque<Guest> guests_;   // the oldest first
  std::deque<std::string> refusals_;
  std::optional<std::uint64_t> last_refused_;
  std::size_t lines_ = 0;
};

}  // namespace

Result<std::vector<Joined>> Gather(const Listener& listener, const LeaderOptions& options) {
  return Gathering(listener, options).Run();
}

}  // namespace syncline::ranks
