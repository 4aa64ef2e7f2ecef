// How a follower works:
//
// 1. Join takes its seat (take_seat.cc) and starts both connections.
// 2. Commands are read by the thread that waits in Next(), straight from the connection. What comes
//    while it is busy is put into inbox_ at every beat, so the leader is not kept waiting.
// 3. Work is read by a thread of its connection and goes to the handler; what comes before there is
//    a handler waits in early_.
// 4. The end on the work connection closes that one only; the end on the other, behind the last
//    command, ends the group: state_ leaves kOpen, and faults do not matter any more.
// 5. A fault of either connection, a farewell or GiveUp() fails the group: state_ leaves kOpen
//    once, under state_mutex_; whoever made it leave stops both connections, which wakes Next(),
//    and posts on_failure. After GiveUp() that waits until the leader has heard the farewell.
// 6. callbacks_ is the last member: it ends first, after the connections' threads have been joined.
#include "ranks/follower.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/worker.h"
#include "ranks/connection.h"
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

constexpr milliseconds kFarewellTime{1000};  // that the leader may take to hear that we give up

class GroupFollower final : public Follower {
 public:
  GroupFollower(FollowerOptions options, Seat seat)
      : options_(std::move(options)),
        commands_(std::move(seat.commands), TimingOf(seat.welcome), Reading::kCaller,
                  {.on_frame = [this](Frame frame) { return TakeCommand(std::move(frame)); },
                   .on_fault =
                       [this](const Fault& fault) {
                         if (fault.closed) AwaitReason();
                         LoseLeader(fault);
                       }}),
        work_(std::move(seat.work), TimingOf(seat.welcome), Reading::kThread,
              {.on_frame = [this](Frame frame) { return TakeWork(std::move(frame)); },
               .on_fault = [this](const Fault& fault) { LoseLeader(fault); }}) {}

  ~GroupFollower() override {
    if (gave_up()) AwaitReason();
    commands_.Stop();
    work_.Stop();
    commands_.End();
    work_.End();
  }

  Status Start() {
    SYNCLINE_TRY(commands_.Start());
    return work_.Start();
  }

  Result<std::optional<Message>> Next() override {
    while (true) {
      {
        const std::scoped_lock lock(state_mutex_);
        if (failure_) return std::unexpected(*failure_);
        if (!inbox_.empty()) {
          Message message = std::move(inbox_.front());
          inbox_.pop_front();
          return message;
        }
        if (state_ == State::kEnded) return std::nullopt;
      }
      if (commands_.ReadSome()) continue;
      std::unique_lock lock(state_mutex_);
      state_left_.wait(lock, [this] { return state_ != State::kOpen; });
    }
  }

  void OnWork(std::function<void(Message)> handler) override {
    const std::scoped_lock lock(work_mutex_);
    handler_ = std::move(handler);
    if (!handler_) return;
    for (Message& message : early_) handler_(std::move(message));
    early_.clear();
  }

  void Reply(std::uint64_t id, Result<std::vector<std::byte>> result) override {
    if (id == 0) return;
    if (result && result->size() > kMaxPayload) {
      result = Fail(Code::kLimitExceeded, fmt::format("an answer of {} bytes, expected at most {}",
                                                      result->size(), kMaxPayload));
    }
    OutgoingFrame frame{.type = result ? FrameType::kAnswer : FrameType::kFault, .id = id};
    frame.payload = std::make_shared<const std::vector<std::byte>>(result ? *std::move(result)
                                                                          : Encode(result.error()));
    work_.Send(frame);
  }

  void GiveUp(const Error& reason) override {
    const std::string text =
        fmt::format("rank {} has failed: {}", options_.group.rank, reason.message);
    if (!FailWith({Code::kUnavailable, text}, true)) return;
    work_.SendLast({.type = FrameType::kFarewell,
                    .payload = std::make_shared<const std::vector<std::byte>>(Encode(reason))},
                   true, steady_clock::now() + kFarewellTime);
    commands_.Stop();
  }

  std::optional<Error> failure() const override {
    const std::scoped_lock lock(state_mutex_);
    return failure_;
  }

 private:
  enum class State { kOpen, kFailed, kEnded };

  bool gave_up() const {
    const std::scoped_lock lock(state_mutex_);
    return gave_up_;
  }

  static Timing TimingOf(const Welcome& welcome) {
    return {.heartbeat = milliseconds(welcome.heartbeat_ms),
            .silence = milliseconds(welcome.silence_ms)};
  }

  static Status Unexpected(const Frame& frame, std::string_view channel) {
    return Fail(Code::kCorrupt, fmt::format("a frame of type {} on the connection for {}",
                                            static_cast<std::uint32_t>(frame.type), channel));
  }

  Status TakeCommand(Frame frame) {
    if (frame.type == FrameType::kCommand) {
      const std::scoped_lock lock(state_mutex_);
      inbox_.push_back(std::move(frame.message));
      return {};
    }
    if (frame.type != FrameType::kEnd) return Unexpected(frame, "commands");
    {
      const std::scoped_lock lock(state_mutex_);
      if (state_ == State::kOpen) state_ = State::kEnded;
      state_left_.notify_all();
    }
    commands_.Stop();
    return {};
  }

  Status TakeWork(Frame frame) {
    switch (frame.type) {
      case FrameType::kAsk: {
        const std::scoped_lock lock(work_mutex_);
        if (handler_) {
          handler_(std::move(frame.message));
        } else {
          early_.push_back(std::move(frame.message));
        }
        return {};
      }
      case FrameType::kEnd:
        work_.Stop();
        return {};
      case FrameType::kFarewell:
        FailWith(DecodeError(frame.message.payload), false);
        commands_.Stop();
        work_.Stop();
        return {};
      default:
        return Unexpected(frame, "work");
    }
  }

  // If the leader ends, the work connection knows the reason, and ends after it; if we do, it ends
  // when the leader has heard ours.
  void AwaitReason() { (void)work_.AwaitClosed(steady_clock::now() + kFarewellTime); }

  void LoseLeader(const Fault& fault) {
    const std::string text = fmt::format("the leader ({}) {}", ToText(options_.leader), fault.text);
    if (!FailWith({Code::kUnavailable, text}, false)) return;
    commands_.Stop();
    work_.Stop();
  }

  // Whether the group was open until now.
  bool FailWith(Error error, bool gave_up) {
    {
      const std::scoped_lock lock(state_mutex_);
      if (state_ != State::kOpen) return false;
      state_ = State::kFailed;
      failure_ = error;
      gave_up_ = gave_up;
      state_left_.notify_all();
    }
    base::Log(base::LogLevel::kError,
              fmt::format("ranks: rank {}: {}", options_.group.rank, error.message));
    if (options_.on_failure) {
      callbacks_.Post([this, gave_up, error = std::move(error)] {
        if (gave_up) AwaitReason();  // who ends the process then does not cut the farewell off
        options_.on_failure(error);
      });
    }
    return true;
  }

  const FollowerOptions options_;
  mutable std::mutex state_mutex_;
  std::condition_variable state_left_;  // kOpen
  State state_ = State::kOpen;          // guarded by state_mutex_
  std::optional<Error> failure_;        // guarded by state_mutex_
  bool gave_up_ = false;                // guarded by state_mutex_
  std::deque<Message> inbox_;           // guarded by state_mutex_
  std::mutex work_mutex_;
  std::function<void(Message)> handler_;  // guarded by work_mutex_
  std::vector<Message> early_;            // guarded by work_mutex_
  Connection commands_;
  Connection work_;
  base::Worker callbacks_;
};

}  // namespace

Result<std::unique_ptr<Follower>> Follower::Join(FollowerOptions options) {
  SYNCLINE_TRY(Check(options.group));
  if (options.group.rank == 0) {
    return Fail(Code::kInvalidArgument, "rank 0 leads, it cannot join as a follower");
  }
  SYNCLINE_ASSIGN(Seat seat, TakeSeat(options));
  try {
    auto follower = std::make_unique<GroupFollower>(std::move(options), std::move(seat));
    SYNCLINE_TRY(follower->Start());
    return follower;
  } catch (const std::exception& error) {
    return Fail(Code::kLimitExceeded, fmt::format("cannot start a thread: {}", error.what()));
  }
}

}  // namespace syncline::ranks
