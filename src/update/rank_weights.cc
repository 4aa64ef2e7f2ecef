// Protocol of an update on one rank:
//
//   1. If the path is a replica: take its lock shared, and read its marker. No marker: it is not
//      whole, refuse.
//   2. Compare config.json with the served model's.
//   3. Read and check every tensor into the staging arena, and compute there what is derived.
//      Generation may go on: nothing that is served is touched.
//   4. Read the marker again: a program that does not know the lock may have changed the files
//      meanwhile.
//   5. Exchange: swap the two arenas, with no forward running.
// Invariant: the live bytes change only in 5, which cannot fail. Afterwards the staging arena holds
// the bytes that were live. Who reads the live bytes outside of the computing thread (Digests) holds
// `live_` and gives way to an exchange within a piece of work.
#include "update/rank_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "layout/digest.h"
#include "layout/pieces.h"
#include "model/model.h"
#include "replica/replica.h"
#include "replica/state.h"
#include "tensor/hash.h"
#include "update/replica_reading.h"

namespace syncline::update {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

std::vector<base::ByteSpan> LiveViews(model::Model& model) {
  const auto live = model.parameters().live();
  return {live.begin(), live.end()};
}

}  // namespace

RankWeights::RankWeights(base::FileSystem& files, model::Model& model, std::string launch_path,
                         const base::CancelToken& cancel)
    : files_(files),
      model_(model),
      launch_path_(std::move(launch_path)),
      cancel_(cancel),
      reading_(std::make_shared<base::CancelToken>(&cancel)) {}

Status RankWeights::CompareConfiguration(const std::string& path) const {
  SYNCLINE_ASSIGN(const bool exists, base::Exists(files_, base::JoinPath(path, "config.json")));
  if (!exists) return {};  // weights only: the tensors' names and shapes say whether they fit
  SYNCLINE_ASSIGN(model::ModelConfig config, model::ReadModelConfig(files_, path));
  config.end_tokens = model_.config().end_tokens;
  config.model_type = model_.config().model_type;
  if (config == model_.config()) return {};
  return Fail(
      Code::kIncompatible,
      fmt::format("{}/config.json describes another model than the one that is served", path));
}

Result<Staged> RankWeights::Stage(const std::string& path) {
  try {
    SYNCLINE_TRY(cancel_.Check());
    SYNCLINE_ASSIGN(const ReplicaReading reading, ReplicaReading::Begin(files_, path, cancel_));
    SYNCLINE_TRY(CompareConfiguration(path));
    SYNCLINE_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::Open(files_, path));
    SYNCLINE_ASSIGN(const auto staging, model_.parameters().Staging());
    Staged staged;
    SYNCLINE_ASSIGN(staged.loaded, layout::LoadCheckpoint(files_, checkpoint, model_.plan(),
                                                          staging, staging_pool_, &cancel_));
    SYNCLINE_TRY(model_.Derive(staging));
    // Stops at the first difference, which is early where a step was made.
    const auto live = model_.parameters().live();
    staged.unchanged = std::ranges::equal(staging, live, [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size()) == 0;
    });
    SYNCLINE_ASSIGN(staged.held, reading.Held());
    SYNCLINE_TRY(reading.End());
    return staged;
  } catch (const std::bad_alloc&) {
    return Fail(Code::kLimitExceeded, fmt::format("{}: out of memory", path));
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, fmt::format("{}: {}", path, error.what()));
  }
}

void RankWeights::Exchange() {
  reading_->Cancel();
  const std::scoped_lock lock(live_);
  std::vector<std::size_t> all(model_.plan().parameters().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  model_.parameters().Commit(all, exchange_pool_);
  reading_ = std::make_shared<base::CancelToken>(&cancel_);
}

std::vector<layout::OwnedPart> RankWeights::ExportOwned(std::size_t tensor) const {
  return layout::TakeOwned(model_.plan(), tensor, LiveViews(model_));
}

Result<RankDigests> RankWeights::Digests(const base::CancelToken& begun) const {
  const std::shared_lock lock(live_);
  const layout::Plan& plan = model_.plan();
  const std::vector<base::ByteSpan> live = LiveViews(model_);
  RankDigests digests;
  const auto changed = [&] {
    if (cancel_.cancelled()) return Fail(Code::kCancelled, "cancelled");
    return Fail(Code::kOutOfOrder, "the weights changed while their digests were computed");
  };
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const auto digest = layout::DigestOwned(plan, i, live, &begun);
    if (!digest) return changed();
    digests.tensors.push_back(*digest);
  }
  std::string derived;
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    if (!plan.IsDerived(i)) continue;
    if (begun.cancelled()) return changed();
    const layout::TensorSpec& spec = plan.parameters()[i];
    derived += fmt::format("{} {}\n", spec.name,
                           tensor::DigestOf(live[i], tensor::DigestUnitBytes(spec.dtype)).Hex());
  }
  if (!derived.empty()) {
    digests.derived = tensor::HashHex(tensor::HashKind::kXxh3, base::AsBytes(derived));
  }
  return digests;
}

PullOutcome RankWeights::Pull(const PullRequest& request) const {
  PullOutcome outcome;
  const auto report =
      replica::Pull(files_, request.source, request.replica,
                    {.version = request.version, .seed = launch_path_, .cancel = &cancel_});
  if (!report) outcome.status = std::unexpected(report.error());
  const auto marker = replica::ReplicaState(files_, request.replica).ReadMarker();
  if (marker && *marker) outcome.held = (*marker)->version;
  return outcome;
}

}  // namespace syncline::update
