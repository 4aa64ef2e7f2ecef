#include "update/following_weights.h"

#include <fmt/core.h>

#include <exception>
#include <new>
#include <variant>

#include "base/worker.h"
#include "model/model.h"
#include "update/rank_protocol.h"

namespace syncline::update {
namespace {

using base::Result;
using ranks::Message;

// The answer to a message: what `answer` makes of what was decoded. Whoever asked waits for it, so
// memory that runs out is an answer too.
template <typename T, typename Answer>
Result<Payload> Respond(const Result<T>& decoded, const Answer& answer) {
  if (!decoded) return std::unexpected(decoded.error());
  try {
    return answer(*decoded);
  } catch (const std::bad_alloc&) {
    return base::Fail(base::Code::kLimitExceeded, "out of memory");
  } catch (const std::exception& error) {
    return base::Fail(base::Code::kInternal, error.what());
  }
}

class Weights : public FollowingWeights {
 public:
  Weights(base::FileSystem& files, model::Model& model, ranks::Follower& follower,
          std::string launch_path)
      : model_(model),
        follower_(follower),
        weights_(files, model, std::move(launch_path), cancel_) {
    follower.OnWork([this](Message message) { OnWork(std::move(message)); });
  }

  ~Weights() override {
    follower_.OnWork(nullptr);
    cancel_.Cancel();
  }

  void OnCommand(Message message) override;

 private:
  void OnWork(Message message);
  Result<Payload> Stage(const Message& message);
  Result<Payload> Pull(const Message& message) const;
  Result<Payload> Export(const Message& message) const;
  Result<Payload> Digests(const base::CancelToken& begun) const;

  model::Model& model_;
  ranks::Follower& follower_;
  base::CancelToken cancel_;
  RankWeights weights_;
  // Last, so that they end first.
  base::Worker updates_;
  base::Worker pulls_;
  base::Worker digests_;
};

Result<Payload> Weights::Stage(const Message& message) {
  return Respond(DecodeText(message.payload), [&](const std::string& path) -> Result<Payload> {
    SYNCLINE_ASSIGN(const Staged staged, weights_.Stage(path));
    return Encode(staged);
  });
}

Result<Payload> Weights::Pull(const Message& message) const {
  return Respond(DecodePullRequest(message.payload),
                 [&](const PullRequest& request) -> Result<Payload> {
                   return Encode(weights_.Pull(request));
                 });
}

Result<Payload> Weights::Export(const Message& message) const {
  return Respond(DecodeNumber(message.payload), [&](std::uint64_t tensor) -> Result<Payload> {
    if (tensor >= model_.plan().tensors().size()) {
      return base::Fail(base::Code::kInternal,
                        fmt::format("tensor {} of {}", tensor, model_.plan().tensors().size()));
    }
    return Encode(weights_.ExportOwned(tensor));
  });
}

Result<Payload> Weights::Digests(const base::CancelToken& begun) const {
  return Respond(Result<std::monostate>(), [&](std::monostate) -> Result<Payload> {
    SYNCLINE_ASSIGN(const RankDigests digests, weights_.Digests(begun));
    return Encode(digests);
  });
}

void Weights::OnWork(Message message) {
  if (message.kind == kCancel) {
    cancel_.Cancel();
    return follower_.Reply(message.id, Payload());
  }
  base::Worker& worker = message.kind == kPull ? pulls_ : updates_;
  worker.Post([this, message = std::move(message)] {
    if (message.kind == kStage) return follower_.Reply(message.id, Stage(message));
    if (message.kind == kPull) return follower_.Reply(message.id, Pull(message));
    follower_.Reply(message.id, base::Fail(base::Code::kInternal,
                                           fmt::format("work of kind {}", message.kind)));
  });
}

void Weights::OnCommand(Message message) {
  switch (message.kind) {
    case kExchange:
      weights_.Exchange();
      return follower_.Reply(message.id, Payload());
    case kExport:
      return follower_.Reply(message.id, Export(message));
    case kDigests:
      return digests_.Post([this, id = message.id, begun = weights_.BeginDigests()] {
        follower_.Reply(id, Digests(*begun));
      });
    default:
      follower_.Reply(message.id, base::Fail(base::Code::kInternal,
                                             fmt::format("a command of kind {}", message.kind)));
  }
}

}  // namespace

std::unique_ptr<FollowingWeights> FollowingWeights::Create(base::FileSystem& files,
                                                           model::Model& model,
                                                           ranks::Follower& follower,
                                                           std::string launch_path) {
  return std::make_unique<Weights>(files, model, follower, std::move(launch_path));
}

}  // namespace syncline::update
