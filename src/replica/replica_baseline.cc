#include "replica/replica_baseline.h"

#include <utility>

#include "replica/replica.h"

namespace syncline::replica {

using base::Result;
using base::Status;
using checkpoint::MappedCheckpoint;

ReplicaBaseline::ReplicaBaseline(base::FileSystem& files, std::string store, std::string directory,
                                 std::string seed, bool follow, std::size_t threads,
                                 objects::Settings objects)
    : files_(files),
      store_(std::move(store)),
      directory_(std::move(directory)),
      seed_(std::move(seed)),
      follow_(follow || !seed_.empty()),
      threads_(threads),
      objects_(std::move(objects)) {}

Status ReplicaBaseline::Map(const std::string& path) {
  SYNCLINE_ASSIGN(MappedCheckpoint mapped, MappedCheckpoint::Open(files_, path));
  mapped_ = std::move(mapped);
  views_ = mapped_->Views();
  return {};
}

Status ReplicaBaseline::Load(std::uint64_t version, base::Progress* progress,
                             const base::CancelToken* cancel) {
  // Files that are replaced or cut by the pull must not be looked at meanwhile.
  views_.clear();
  mapped_.reset();
  const PullOptions pull = {.version = version,
                            .seed = seed_,
                            .threads = threads_,
                            .progress = progress,
                            .cancel = cancel,
                            .source = {.connection = objects_}};
  SYNCLINE_TRY(Pull(files_, store_, directory_, pull));
  return Map(directory_);
}

Status ReplicaBaseline::LoadSeed() { return Map(seed_); }

Status ReplicaBaseline::Advance(std::uint64_t version, std::span<const tensor::TensorView>,
                                std::span<const delta::ChangedLines>, base::ThreadPool&) {
  if (follow_) return Load(version, nullptr, nullptr);
  views_.clear();
  return {};
}

Result<bool> ReplicaBaseline::Recover(std::uint64_t version, const base::CancelToken* cancel) {
  SYNCLINE_TRY(Load(version, nullptr, cancel));
  return true;
}

}  // namespace syncline::replica
