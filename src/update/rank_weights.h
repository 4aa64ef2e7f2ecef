// What one rank does to its own weights, the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "layout/load.h"
#include "layout/pieces.h"
#include "tensor/digest.h"

namespace syncline::model {
class Model;
}

namespace syncline::update {

struct PullRequest {
  std::string source;   // store
  std::string replica;  // local checkpoint directory
  std::uint64_t version = 0;
};

// A checkpoint that lies ready in the staging arena.
struct Staged {
  layout::LoadReport loaded;
  // What the replica that it was read from holds: version and identity; empty for any other
  // directory. Ranks that read different versions must not be mixed.
  std::string held;
  bool unchanged = false;  // the bytes are those that are live already
};

struct RankDigests {
  std::vector<tensor::Digest> tensors;  // of what this rank owns of each tensor of the plan
  std::string derived;  // xxh3-128 over the digests of the derived parameters; empty: it has none
};

struct PullOutcome {
  base::Status status;
  std::optional<std::uint64_t> held;  // that the replica is at now
};

// Stage and Pull may run while the model computes, one of each at a time. Exchange and ExportOwned
// are for the thread that computes, between two steps.
class RankWeights {
 public:
  // All must outlive it. `launch_path`: version 0 of pulls.
  RankWeights(base::FileSystem& files, model::Model& model, std::string launch_path,
              const base::CancelToken& cancel);

  // Reads and checks the whole checkpoint into the staging arena (configuration, every name, shape
  // and dtype; nothing missing, nothing unknown) and derives what is derived. A replica's lock is
  // held shared while it is read; it must be whole and stay at its version.
  base::Result<Staged> Stage(const std::string& path);

  // Swaps the staging arena with the live one.
  void Exchange();

  std::vector<layout::OwnedPart> ExportOwned(std::size_t tensor) const;

  // Digests of the weights that are live when BeginDigests is called (between two steps); computed by
  // Digests on any thread, while the model goes on. kOutOfOrder if the weights change before it is
  // done: the change does not wait.
  std::shared_ptr<base::CancelToken> BeginDigests() const { return reading_; }
  base::Result<RankDigests> Digests(const base::CancelToken& begun) const;

  PullOutcome Pull(const PullRequest& request) const;

 private:
  base::Status CompareConfiguration(const std::string& path) const;

  base::FileSystem& files_;
  model::Model& model_;
  const std::string launch_path_;
  const base::CancelToken& cancel_;
  base::ThreadPool staging_pool_;
  base::ThreadPool exchange_pool_;
  mutable std::shared_mutex live_;              // held shared while digests are computed
  std::shared_ptr<base::CancelToken> reading_;  // of the live weights: cancelled when they go
};

}  // namespace syncline::update
