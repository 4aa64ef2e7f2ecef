// The follower's side of the rendezvous: tries again until the leader has welcomed both
// connections, the leader has refused it, or time is up. The leader's answer comes when the group
// is complete, so a wait for it that ends early means that the leader has ended, and another may
// come.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/rendezvous.h"

namespace syncline::ranks {
namespace {

using base::Code;
using base::Error;
using base::Fail;
using base::Result;
using base::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{50};  // between two attempts

std::uint64_t Chance() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

struct Fault {
  Error error;
  bool refused = false;  // no use in trying again
};

class Attempt {
 public:
  Attempt(const FollowerOptions& options, Deadline deadline)
      : options_(options), deadline_(deadline) {}

  std::expected<Seat, Fault> Run() {
    Hello hello{.group = options_.group,
                .pid = getpid(),
                .chance = Chance(),
                .token = options_.token,
                .fingerprint = options_.fingerprint,
                .host = options_.host};
    Seat seat;
    for (const Channel channel : {Channel::kCommands, Channel::kWork}) {
      hello.channel = channel;
      Status opened = Open(hello, channel == Channel::kCommands ? seat.commands : seat.work);
      if (!opened) return std::unexpected(Fault{std::move(opened).error()});
    }
    for (const Descriptor* socket : {&seat.commands, &seat.work}) {
      auto welcome = AwaitWelcome(*socket);
      if (!welcome) return std::unexpected(std::move(welcome).error());
      seat.welcome = *welcome;
    }
    return seat;
  }

 private:
  Status Open(const Hello& hello, Descriptor& socket) const {
    SYNCLINE_ASSIGN(const std::vector<std::byte> bytes, Encode(hello));
    SYNCLINE_ASSIGN(socket, Connect(options_.leader, deadline_, options_.cancel));
    return InContext(WriteAll(socket, bytes, deadline_, options_.cancel));
  }

  std::expected<Welcome, Fault> AwaitWelcome(const Descriptor& socket) const {
    auto frame = ReadFrame(socket);
    if (!frame) return std::unexpected(Fault{std::move(frame).error()});
    if (frame->type == FrameType::kRefused) {
      Error error = DecodeError(frame->message.payload);
      error.message = fmt::format("the leader at {} refuses rank {}: {}", ToText(options_.leader),
                                  options_.group.rank, error.message);
      return std::unexpected(Fault{std::move(error), true});
    }
    auto welcome = DecodeWelcome(frame->message.payload);
    if (!welcome) return std::unexpected(Fault{InContext(std::move(welcome)).error()});
    return *welcome;
  }

  // A welcome or refused, and not a byte more: what comes behind it belongs to the connection.
  Result<Frame> ReadFrame(const Descriptor& socket) const {
    FrameHeaderBytes bytes{};
    const Status read = ReadAll(socket, bytes, deadline_, options_.cancel);
    if (!read && read.error().code == Code::kTimeout) {
      return Fail(Code::kTimeout, fmt::format("the leader at {} still waits for other ranks",
                                              ToText(options_.leader)));
    }
    SYNCLINE_TRY(InContext(read));
    const auto header = DecodeFrameHeader(bytes);
    if (!header || (header->type != FrameType::kRefused && header->type != FrameType::kWelcome)) {
      return Fail(Code::kUnavailable,
                  fmt::format("{} is no leader of ranks", ToText(options_.leader)));
    }
    Frame frame{.type = header->type, .message = {}};
    frame.message.payload.resize(header->size);  // bounded by the type
    SYNCLINE_TRY(InContext(ReadAll(socket, frame.message.payload, deadline_, options_.cancel)));
    return frame;
  }

  template <typename T>
  Result<T> InContext(Result<T> result) const {
    if (result || result.error().code == Code::kCancelled) return result;
    return base::Annotate(std::move(result).error(),
                          fmt::format("the leader at {}", ToText(options_.leader)));
  }

  const FollowerOptions& options_;
  const Deadline deadline_;
};

}  // namespace

Result<Seat> TakeSeat(const FollowerOptions& options) {
  const Deadline deadline = steady_clock::now() + options.join_timeout;
  while (true) {
    auto seat = Attempt(options, deadline).Run();
    if (seat) return *std::move(seat);
    Fault fault = std::move(seat).error();
    const Code code = fault.error.code;
    const bool mended_by_time = code == Code::kUnavailable || code == Code::kTimeout;
    if (fault.refused || !mended_by_time) return std::unexpected(std::move(fault.error));
    const Deadline again = std::min(deadline, steady_clock::now() + kPause);
    if (again >= deadline) {
      return Fail(Code::kTimeout,
                  fmt::format("rank {} could not join within {:.1f} s: {}", options.group.rank,
                              std::chrono::duration<double>(options.join_timeout).count(),
                              fault.error.message));
    }
    std::this_thread::sleep_until(again);
  }
}

}  // namespace syncline::ranks
