// Protocol of a step:
//   1. rank 0 sends the batch to all others, in the one order of commands;
//   2. every rank computes its part; sums over ranks hold them together (model/collectives.h);
//   3. rank 0 has the logits.
// A rank that cannot compute its part gives up, because the others would wait for it: so a step that
// fails on one of several ranks is the end of the group. Where its fault may be another's (a
// connection broke) it first waits for the leader's word, which knows who is gone.
#include "engine/ranked_model.h"

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "base/wire.h"
#include "engine/rank_messages.h"

namespace syncline::engine {
namespace {

using base::Code;
using base::Status;

// A step could not be computed. For `end`, this process's end of the group: why the group has
// failed, after the rank has given up if nobody else did.
template <typename End>
base::Error FailGroup(End& end, const base::Error& error) {
  // Longer than the leader needs to notice a silent rank.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  if (error.code != Code::kLimitExceeded) {
    while (!end.failure() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  if (!end.failure()) end.GiveUp(error);
  return end.failure().value_or(error);
}

class RankedModel : public model::Model {
 public:
  RankedModel(std::unique_ptr<model::Model> own, ranks::Leader& leader)
      : leader_(leader), own_(std::move(own)) {}

  const model::ModelConfig& config() const override { return own_->config(); }
  const layout::Plan& plan() const override { return own_->plan(); }
  model::Parameters& parameters() override { return own_->parameters(); }
  const quant::Units& units() const override { return own_->units(); }
  std::uint64_t KvBytesPerToken() const override { return own_->KvBytesPerToken(); }
  Status Derive(std::span<const base::MutableByteSpan> memory) override {
    return own_->Derive(memory);
  }
  Status ReserveKv(std::uint32_t blocks) override;
  Status Forward(const model::Batch& batch, std::span<float> logits) override;
  std::span<const std::int32_t> chosen_experts() const override { return own_->chosen_experts(); }
  double CollectiveSeconds() const override { return own_->CollectiveSeconds(); }

 private:
  ranks::Leader& leader_;
  std::unique_ptr<model::Model> own_;
};

Status RankedModel::ReserveKv(std::uint32_t blocks) {
  base::WireWriter message;
  message.Put(blocks);
  const auto others = std::make_shared<std::promise<Status>>();
  leader_.CommandAndAsk(kReserveKv, std::move(message).Take(), [others](const auto& replies) {
    Status all;
    for (const auto& reply : replies) {
      if (!reply && all) all = std::unexpected(reply.error());
    }
    others->set_value(all);
  });
  const Status own = own_->ReserveKv(blocks);
  const Status other = others->get_future().get();
  if (!own) return base::Annotate(own.error(), "rank 0");
  return other;
}

Status RankedModel::Forward(const model::Batch& batch, std::span<float> logits) {
  if (const auto failure = leader_.failure()) return std::unexpected(*failure);
  leader_.Command(kForward, EncodeBatch(batch));
  const Status computed = own_->Forward(batch, logits);
  if (computed) return {};
  return std::unexpected(FailGroup(leader_, computed.error()));
}

}  // namespace

std::unique_ptr<model::Model> MakeRankedModel(std::unique_ptr<model::Model> own,
                                              ranks::Leader& leader) {
  return std::make_unique<RankedModel>(std::move(own), leader);
}

Status FollowCommands(ranks::Follower& follower, model::Model& model,
                      const std::function<void(ranks::Message)>& other) {
  for (;;) {
    SYNCLINE_ASSIGN(std::optional<ranks::Message> message, follower.Next());
    if (!message) return {};
    if (message->kind == kForward) {
      const auto batch = DecodeBatch(message->payload);
      if (!batch) return std::unexpected(FailGroup(follower, batch.error()));
      const Status computed = model.Forward(*batch, {});
      if (!computed) return std::unexpected(FailGroup(follower, computed.error()));
    } else if (message->kind == kReserveKv) {
      base::WireReader reader(message->payload);
      const auto blocks = reader.Take<std::uint32_t>();
      Status reserved = reader.status();
      if (reserved) reserved = model.ReserveKv(blocks);
      follower.Reply(message->id, reserved ? base::Result<std::vector<std::byte>>()
                                           : std::unexpected(reserved.error()));
    } else {
      other(*std::move(message));
    }
  }
}

}  // namespace syncline::engine
