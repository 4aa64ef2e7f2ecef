// How the leader works:
//
// 1. Listen binds; Join gathers the followers (gather.cc) and starts two connections for each.
// 2. A command goes to all followers under order_mutex_, so all have the same order. Its payload is
//    shared by all queues. Nobody waits under the mutex.
// 3. A question is entered in asks_ before it is sent, so its answers find it. The last answer
//    takes it out; whoever takes it out posts its callback.
// 4. The first fault closes the group: state_ leaves kOpen once, under state_mutex_, and whoever
//    made it leave does the rest: it ends all questions, sends the farewell to the others and posts
//    on_failure. Later faults change nothing.
// 5. Shutdown closes the group the same way, with an end behind the last command instead.
// 6. Callbacks run on callbacks_, which is the last member: it ends first, while all else is there.
#include "ranks/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/worker.h"
#include "ranks/connection.h"
#include "ranks/open_asks.h"
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

constexpr milliseconds kMaxFarewell{1000};  // that a follower may take to hear of a failure

class GroupLeader final : public Leader {
 public:
  GroupLeader(LeaderOptions options, Listener listener)
      : options_(std::move(options)), listener_(std::move(listener)), port_(listener_->port()) {}

  ~GroupLeader() override {
    Close(State::kEnded, {Code::kCancelled, "the group was ended"});
    if (failure()) AwaitFarewells();
    for (const Link& link : links_) {
      link.commands->Stop();
      link.work->Stop();
    }
    for (const Link& link : links_) {
      link.commands->End();
      link.work->End();
    }
  }

  std::uint16_t port() const override { return port_; }
  const std::vector<Peer>& peers() const override { return peers_; }

  Status Join() override {
    if (!listener_) return Fail(Code::kInvalidArgument, "the group was joined already");
    auto joined = Gather(*listener_, options_);
    listener_.reset();
    if (!joined) return std::unexpected(std::move(joined).error());
    links_.reserve(joined->size());
    for (Joined& follower : *joined) {
      peers_.push_back(follower.peer);
      links_.push_back(MakeLink(std::move(follower)));
    }
    for (const Link& link : links_) {
      SYNCLINE_TRY(link.commands->Start());
      SYNCLINE_TRY(link.work->Start());
    }
    return {};
  }

  void Command(std::uint32_t kind, std::vector<std::byte> payload) override {
    if (payload.size() > kMaxPayload) return GiveUp(TooLarge(payload.size()));
    SendCommand(kind, 0, std::move(payload));
  }

  void CommandAndAsk(std::uint32_t kind, std::vector<std::byte> payload, Replies replies) override {
    std::vector<std::uint32_t> ranks(links_.size());
    std::iota(ranks.begin(), ranks.end(), 1);
    if (payload.size() > kMaxPayload) {
      return AnswerAll(ranks.size(), TooLarge(payload.size()), std::move(replies));
    }
    const std::uint64_t id = Open(std::move(ranks), std::move(replies));
    if (id != 0) SendCommand(kind, id, std::move(payload));
  }

  void Ask(std::span<const std::uint32_t> ranks, std::uint32_t kind, std::vector<std::byte> payload,
           Replies replies) override {
    std::vector<std::uint32_t> asked(ranks.begin(), ranks.end());
    if (const Status fits = CheckAsk(asked, payload.size()); !fits) {
      return AnswerAll(asked.size(), fits.error(), std::move(replies));
    }
    const std::uint64_t id = Open(asked, std::move(replies));
    if (id == 0) return;
    const OutgoingFrame frame{
        .type = FrameType::kAsk,
        .kind = kind,
        .id = id,
        .payload = std::make_shared<const std::vector<std::byte>>(std::move(payload))};
    for (const std::uint32_t rank : asked) links_[rank - 1].work->Send(frame);
  }

  std::optional<Error> failure() const override {
    const std::scoped_lock lock(state_mutex_);
    return failure_;
  }

  void GiveUp(const Error& reason) override {
    FailAll(fmt::format("the leader has failed: {}", reason.message));
  }

  void Shutdown() override {
    if (!Close(State::kEnded, {Code::kCancelled, "the group was shut down"})) return;
    const Deadline deadline = steady_clock::now() + options_.silence;
    {
      const std::scoped_lock lock(order_mutex_);
      for (const Link& link : links_) {
        link.commands->SendLast({.type = FrameType::kEnd}, false, deadline);
        link.work->SendLast({.type = FrameType::kEnd}, true, deadline);
      }
    }
    for (const Link& link : links_) {
      (void)link.commands->AwaitClosed(deadline);
      (void)link.work->AwaitClosed(deadline);
    }
  }

 private:
  enum class State { kOpen, kFailed, kEnded };

  struct Link {
    std::unique_ptr<Connection> commands;
    std::unique_ptr<Connection> work;
  };

  Link MakeLink(Joined follower) {
    const std::uint32_t rank = follower.peer.rank;
    const Timing timing{.heartbeat = options_.heartbeat, .silence = options_.silence};
    const auto lose = [this, rank](const Fault& fault) {
      FailAll(fmt::format("{} {}", LongName(rank), fault.text));
    };
    Link link;
    link.commands = std::make_unique<Connection>(
        std::move(follower.commands), timing, Reading::kThread,
        Connection::Events{.on_frame = [](const Frame& frame) -> Status {
                             return Fail(Code::kCorrupt, Unexpected(frame, "commands"));
                           },
                           .on_fault =
                               [this, rank, lose](const Fault& fault) {
                                 if (fault.closed) AwaitReason(rank);
                                 lose(fault);
                               }});
    link.work = std::make_unique<Connection>(
        std::move(follower.work), timing, Reading::kThread,
        Connection::Events{
            .on_frame = [this, rank](Frame frame) { return Take(rank, std::move(frame)); },
            .on_fault = lose});
    return link;
  }

  static std::string Unexpected(const Frame& frame, std::string_view channel) {
    return fmt::format("a frame of type {} on the connection for {}",
                       static_cast<std::uint32_t>(frame.type), channel);
  }

  // From the work connection of a follower.
  Status Take(std::uint32_t rank, Frame frame) {
    Message& message = frame.message;
    switch (frame.type) {
      case FrameType::kAnswer:
        Call(asks_.Take(message.id, rank, std::move(message.payload)));
        return {};
      case FrameType::kFault:
        Call(asks_.Take(message.id, rank,
                        base::Annotate(DecodeError(message.payload), ShortName(rank))));
        return {};
      case FrameType::kFarewell:
        FailAll(
            fmt::format("{} has failed: {}", LongName(rank), DecodeError(message.payload).message));
        links_[rank - 1].work->Stop();
        return {};
      default:
        return Fail(Code::kCorrupt, Unexpected(frame, "work"));
    }
  }

  std::string ShortName(std::uint32_t rank) const {
    return fmt::format("rank {} (host {})", rank, peers_[rank - 1].host);
  }
  std::string LongName(std::uint32_t rank) const {
    const Peer& peer = peers_[rank - 1];
    return fmt::format("rank {} (host {}, pid {})", rank, peer.host, peer.pid);
  }

  static Error TooLarge(std::size_t bytes) {
    return {Code::kLimitExceeded,
            fmt::format("a message of {} bytes, expected at most {}", bytes, kMaxPayload)};
  }

  Status CheckAsk(std::vector<std::uint32_t> ranks, std::size_t bytes) const {
    if (bytes > kMaxPayload) return std::unexpected(TooLarge(bytes));
    std::ranges::sort(ranks);
    if (std::ranges::adjacent_find(ranks) != ranks.end()) {
      return Fail(Code::kInvalidArgument, "a rank is asked twice");
    }
    if (!ranks.empty() && (ranks.front() == 0 || ranks.back() > links_.size())) {
      return Fail(Code::kInvalidArgument,
                  fmt::format("rank {} is no follower: expected 1 to {}",
                              ranks.front() == 0 ? 0 : ranks.back(), links_.size()));
    }
    return {};
  }

  void SendCommand(std::uint32_t kind, std::uint64_t id, std::vector<std::byte> payload) {
    const OutgoingFrame frame{
        .type = FrameType::kCommand,
        .kind = kind,
        .id = id,
        .payload = std::make_shared<const std::vector<std::byte>>(std::move(payload))};
    const std::scoped_lock lock(order_mutex_);
    if (state_ != State::kOpen) return;
    for (const Link& link : links_) link.commands->Send(frame);
  }

  void Call(OpenAsks::Call call) {
    if (call) callbacks_.Post(std::move(call));
  }

  // The id of the question; 0: it has been answered, as the group has ended.
  std::uint64_t Open(std::vector<std::uint32_t> ranks, Replies replies) {
    OpenAsks::Added added = asks_.Add(std::move(ranks), std::move(replies));
    Call(std::move(added.call));
    return added.id;
  }

  void AnswerAll(std::size_t count, Error error, Replies replies) {
    Call([count, error = std::move(error), replies = std::move(replies)] {
      if (replies) replies(std::vector<Answer>(count, std::unexpected(error)));
    });
  }

  // Whether the group was open until now. Ends all questions with `reason`.
  bool Close(State state, const Error& reason) {
    {
      const std::scoped_lock lock(state_mutex_);
      if (state_ != State::kOpen) return false;
      state_ = state;
      if (state == State::kFailed) failure_ = reason;
    }
    for (OpenAsks::Call& call : asks_.CloseAll(reason)) Call(std::move(call));
    return true;
  }

  void FailAll(const std::string& text) {
    const Error error{Code::kUnavailable, text};
    if (!Close(State::kFailed, error)) return;
    base::Log(base::LogLevel::kError, fmt::format("ranks: {}", text));
    const Deadline deadline = steady_clock::now() + FarewellTime();
    const OutgoingFrame farewell{
        .type = FrameType::kFarewell,
        .payload = std::make_shared<const std::vector<std::byte>>(Encode(error))};
    for (const Link& link : links_) link.work->SendLast(farewell, true, deadline);
    if (options_.on_failure) {
      Call([on_failure = options_.on_failure, error] { on_failure(error); });
    }
  }

  // If a follower ends, its work connection knows the reason, and ends after it.
  void AwaitReason(std::uint32_t rank) {
    (void)links_[rank - 1].work->AwaitClosed(steady_clock::now() + FarewellTime());
  }

  milliseconds FarewellTime() const { return std::min(options_.silence, kMaxFarewell); }

  // Followers close when they have heard it.
  void AwaitFarewells() {
    const Deadline deadline = steady_clock::now() + FarewellTime();
    for (const Link& link : links_) (void)link.work->AwaitClosed(deadline);
  }

  const LeaderOptions options_;
  std::optional<Listener> listener_;  // until the group is complete
  const std::uint16_t port_;
  std::vector<Peer> peers_;  // constant after Join, as links_
  OpenAsks asks_;
  std::mutex order_mutex_;
  mutable std::mutex state_mutex_;
  std::atomic<State> state_ = State::kOpen;  // written under state_mutex_
  std::optional<Error> failure_;             // guarded by state_mutex_
  std::vector<Link> links_;                  // of rank 1, 2 …
  base::Worker callbacks_;
};

}  // namespace

Result<std::unique_ptr<Leader>> Leader::Listen(LeaderOptions options) {
  SYNCLINE_TRY(
      Check(Group{.rank = 0, .size = options.size, .node_rank = 0, .nodes = options.nodes}));
  if (options.heartbeat <= milliseconds(0) || options.silence <= options.heartbeat ||
      options.silence > std::chrono::hours(1)) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("a heartbeat every {} ms and a silence limit of {} ms: the limit must be "
                    "longer than the beat and at most an hour",
                    options.heartbeat.count(), options.silence.count()));
  }
  const Deadline deadline = steady_clock::now() + options.join_timeout;
  SYNCLINE_ASSIGN(Listener listener, Listener::Open(options.listen, deadline, options.cancel));
  try {
    return std::make_unique<GroupLeader>(std::move(options), std::move(listener));
  } catch (const std::exception& error) {
    return Fail(Code::kLimitExceeded, fmt::format("cannot start a thread: {}", error.what()));
  }
}

}  // namespace syncline::ranks
