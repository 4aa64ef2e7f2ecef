// Work runs on three threads: updates, pulls, and reading of the live weights, each in its order; what
// waits for trainers, or for engines that are seeded, runs on threads of its own.
#include "update/following_weights.h"

#include <fmt/core.h>

#include <exception>
#include <new>

#include "base/task_threads.h"
#include "base/worker.h"
#include "model/model.h"
#include "update/groups.h"
#include "update/rank_protocol.h"

namespace syncline::update {
namespace {

using base::Result;
using ranks::Message;

// The answer to a message. Whoever asked waits for it, so memory that runs out is an answer too.
template <typename Answer>
Result<Payload> Respond(const Answer& answer) {
  try {
    return answer();
  } catch (const std::bad_alloc&) {
    return base::Fail(base::Code::kLimitExceeded, "out of memory");
  } catch (const std::exception& error) {
    return base::Fail(base::Code::kInternal, error.what());
  }
}

template <typename T>
Result<Payload> EncodeResult(const Result<T>& result) {
  if (!result) return std::unexpected(result.error());
  return Encode(*result);
}

Result<Payload> EncodeNames(const Result<std::vector<std::string>>& names) {
  if (!names) return std::unexpected(names.error());
  return EncodeTexts(*names);
}

Result<Payload> NoContent(const base::Status& status) {
  if (!status) return std::unexpected(status.error());
  return Payload();
}

Result<Payload> Unknown(const Message& message) {
  return base::Fail(base::Code::kInternal, fmt::format("a message of kind {}", message.kind));
}

class Weights : public FollowingWeights {
 public:
  Weights(base::FileSystem& files, const std::vector<Runner>& runners, ranks::Follower& follower,
          RankWeights::Options options, std::chrono::milliseconds transfer_timeout)
      : tensors_(runners[0].model->plan().tensors().size()),
        rank_(options.rank),
        follower_(follower),
        weights_(files, runners, std::move(options), cancel_),
        producer_(weights_, transfer_timeout, cancel_),
        groups_({.timeout = transfer_timeout, .most_bytes = weights_.most_message_bytes()},
                cancel_) {
    follower.OnWork([this](Message message) { OnWork(std::move(message)); });
  }

  ~Weights() override {
    follower_.OnWork(nullptr);
    cancel_.Cancel();
  }

  void OnCommand(Message message) override;

 private:
  void OnWork(Message message);
  Result<Payload> Work(const Message& message);
  Result<Payload> Seed(const Message& message);
  Result<Payload> Transfer(const Message& message);
  Result<Payload> Command(const Message& message);
  Result<Payload> Read(const Message& message, const base::CancelToken& begun);
  Result<Payload> Export(base::ByteSpan payload) const;

  const std::size_t tensors_;  // of the target's plan
  const std::uint32_t rank_;
  ranks::Follower& follower_;
  base::CancelToken cancel_;
  RankWeights weights_;
  RankProducer producer_;
  RankGroups groups_;
  // Last, so that they end first.
  base::TaskThreads transfers_;
  base::Worker updates_;
  base::Worker pulls_;
  base::Worker reading_;
};

Result<Payload> Weights::Work(const Message& message) {
  switch (message.kind) {
    case kStage: {
      SYNCLINE_ASSIGN(const std::string path, DecodeText(message.payload));
      return EncodeResult(weights_.Stage(path));
    }
    case kReceive: {
      SYNCLINE_ASSIGN(const ReceiveRequest request, DecodeReceiveRequest(message.payload));
      if (request.ticket == 0) {
        return EncodeResult(
            weights_.Receive(request.selector, request.format, request.direct, request.message));
      }
      SYNCLINE_ASSIGN(const auto batch, groups_.Take(request.ticket));
      return EncodeResult(weights_.Receive(request.selector, *batch));
    }
    case kFromProducer: {
      SYNCLINE_ASSIGN(const ProducerRequest request, DecodeProducerRequest(message.payload));
      return EncodeResult(producer_.Receive(request));
    }
    case kFinishProducer: {
      SYNCLINE_ASSIGN(const std::string failure, DecodeText(message.payload));
      producer_.Finish(failure);
      return Payload();
    }
    case kPrepare: {
      SYNCLINE_ASSIGN(const PrepareRequest request, DecodePrepareRequest(message.payload));
      return EncodeResult(weights_.Prepare(request.selector, request.whole));
    }
    case kSeedSend:
    case kSeedReceive:
      return Seed(message);
    case kOffer:
      return EncodeResult(weights_.Offer());
    case kOpen:
      return NoContent(weights_.Open());
    case kDrop:
      return EncodeTexts(weights_.Drop());
    case kMayWrite:
      return EncodeNumber(weights_.may_write_in_place() ? 1 : 0);
    case kRelease:
      return EncodeNames(weights_.Release());
    case kResume:
      return EncodeNames(weights_.Resume());
    case kSnapshot: {
      SYNCLINE_ASSIGN(const CheckMessage check, DecodeCheckMessage(message.payload));
      return NoContent(weights_.Snapshot(check.selector));
    }
    case kPull: {
      SYNCLINE_ASSIGN(const PullRequest request, DecodePullRequest(message.payload));
      return Encode(weights_.Pull(request));
    }
    default:
      return Unknown(message);
  }
}

// The weights for another engine, or from one.
Result<Payload> Weights::Seed(const Message& message) {
  SYNCLINE_ASSIGN(const std::string name, DecodeText(message.payload));
  SYNCLINE_ASSIGN(const std::string hash,
                  message.kind == kSeedSend ? weights_.SendLive(name) : weights_.ReceiveLive(name));
  return EncodeText(hash);
}

// What waits for trainers, or for such engines.
Result<Payload> Weights::Transfer(const Message& message) {
  switch (message.kind) {
    case kJoinGroup: {
      SYNCLINE_ASSIGN(const JoinGroup join, DecodeJoinGroup(message.payload));
      return NoContent(groups_.table().Join(join.address, join.number));
    }
    case kLeaveGroup: {
      SYNCLINE_ASSIGN(const LeaveGroup leave, DecodeLeaveGroup(message.payload));
      return NoContent(groups_.table().Leave(leave.name, leave.number));
    }
    case kReceiveGroup: {
      SYNCLINE_ASSIGN(ReceiveGroup request, DecodeReceiveGroup(message.payload));
      return NoContent(groups_.Receive(request.ticket, request.tensors.group,
                                       std::move(request.tensors.announced),
                                       request.tensors.flattened));
    }
    case kForget: {
      SYNCLINE_ASSIGN(const std::uint64_t ticket, DecodeNumber(message.payload));
      static_cast<void>(groups_.Take(ticket));
      return Payload();
    }
    case kSeedOpen: {
      SYNCLINE_ASSIGN(const JoinGroup group, DecodeJoinGroup(message.payload));
      SYNCLINE_ASSIGN(const std::uint16_t port, weights_.seeding().Open(group.address, rank_));
      return EncodeNumber(port);
    }
    case kSeedWait: {
      SYNCLINE_ASSIGN(const std::string name, DecodeText(message.payload));
      return NoContent(weights_.seeding().Wait(name));
    }
    case kSeedClose: {
      SYNCLINE_ASSIGN(const std::string name, DecodeText(message.payload));
      weights_.seeding().Close(name);
      return Payload();
    }
    default:
      return Unknown(message);
  }
}

void Weights::OnWork(Message message) {
  if (message.kind == kCancel) {
    cancel_.Cancel();
    return follower_.Reply(message.id, Payload());
  }
  if (message.kind >= kJoinGroup && message.kind <= kForget) {
    return transfers_.Run([this, message = std::move(message)] {
      follower_.Reply(message.id, Respond([&] { return Transfer(message); }));
    });
  }
  base::Worker& worker = message.kind == kPull       ? pulls_
                         : message.kind == kSnapshot ? reading_
                                                     : updates_;
  worker.Post([this, message = std::move(message)] {
    follower_.Reply(message.id, Respond([&] { return Work(message); }));
  });
}

Result<Payload> Weights::Export(base::ByteSpan payload) const {
  SYNCLINE_ASSIGN(const std::uint64_t tensor, DecodeNumber(payload));
  if (tensor >= tensors_) {
    return base::Fail(base::Code::kInternal, fmt::format("tensor {} of {}", tensor, tensors_));
  }
  SYNCLINE_ASSIGN(const std::vector<layout::OwnedPart> parts, weights_.ExportOwned(tensor));
  return Encode(parts);
}

Result<Payload> Weights::Command(const Message& message) {
  switch (message.kind) {
    case kCommit:
      return EncodeTexts(weights_.Commit());
    case kDeriveLive:
      return NoContent(weights_.DeriveLive());
    case kReset: {
      SYNCLINE_ASSIGN(const CheckMessage check, DecodeCheckMessage(message.payload));
      return NoContent(weights_.Reset(check.selector, check.options));
    }
    case kPutBack: {
      SYNCLINE_ASSIGN(const CheckMessage check, DecodeCheckMessage(message.payload));
      SYNCLINE_ASSIGN(const std::vector<std::string> names, weights_.PutBack(check.selector));
      return EncodeTexts(names);
    }
    case kExport:
      return Export(message.payload);
    default:
      return Unknown(message);
  }
}

// What is begun between two steps, and goes on beside them.
Result<Payload> Weights::Read(const Message& message, const base::CancelToken& begun) {
  if (message.kind == kDigests) return EncodeResult(weights_.Digests(begun));
  SYNCLINE_ASSIGN(const CheckMessage check, DecodeCheckMessage(message.payload));
  const auto checks = message.kind == kCompare
                          ? weights_.Compare(check.selector, check.options, begun)
                          : weights_.Checksums(check.selector, check.options, begun);
  if (!checks) return std::unexpected(checks.error());
  return Encode(std::span<const RankCheck>(*checks));
}

void Weights::OnCommand(Message message) {
  const bool reads =
      message.kind == kDigests || message.kind == kCompare || message.kind == kChecksums;
  if (!reads) return follower_.Reply(message.id, Respond([&] { return Command(message); }));
  reading_.Post([this, message = std::move(message), begun = weights_.BeginReading()] {
    follower_.Reply(message.id, Respond([&] { return Read(message, *begun); }));
  });
}

}  // namespace

std::unique_ptr<FollowingWeights> FollowingWeights::Create(
    base::FileSystem& files, const std::vector<Runner>& runners, ranks::Follower& follower,
    RankWeights::Options options, std::chrono::milliseconds transfer_timeout) {
  return std::make_unique<Weights>(files, runners, follower, std::move(options), transfer_timeout);
}

}  // namespace syncline::update
