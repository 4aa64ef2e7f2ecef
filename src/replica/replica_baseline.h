// A publisher's baseline on disk: a replica of the store, mapped read-only. It takes no memory but
// the page cache, is proven by the store's own hashes, and outlives the process.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "objects/object_store.h"
#include "store/baseline.h"

namespace syncline::replica {

class ReplicaBaseline final : public store::Baseline {
 public:
  // `directory` becomes the replica of `store` (see Pull); nothing else may change it. `seed`: the
  // checkpoint that is version 0; empty: version 0 is in the store. Without `follow` the replica
  // stays behind when a version is published, and nothing is held then; with a seed it follows
  // anyway, as the version proves which checkpoint the seed is. `objects`: for a store that is no
  // directory.
  ReplicaBaseline(base::FileSystem& files, std::string store, std::string directory,
                  std::string seed, bool follow, std::size_t threads, objects::Settings objects);

  // Pulls version `version` and maps it.
  base::Status Load(std::uint64_t version, base::Progress* progress,
                    const base::CancelToken* cancel);
  // For a store without a version yet: maps the seed itself, as version 0. The replica is made by
  // the first Advance, when a version proves which checkpoint version 0 is.
  base::Status LoadSeed();

  std::span<const tensor::TensorView> tensors() const override { return views_; }
  // Pulls the version that was published, if the replica follows.
  base::Status Advance(std::uint64_t version, std::span<const tensor::TensorView> tensors,
                       std::span<const delta::ChangedLines> lines, base::ThreadPool& pool) override;
  bool needs_bytes() const override { return false; }
  base::Result<bool> Recover(std::uint64_t version, const base::CancelToken* cancel) override;

 private:
  base::Status Map(const std::string& path);

  base::FileSystem& files_;
  std::string store_;
  std::string directory_;
  std::string seed_;
  bool follow_;
  std::size_t threads_;
  objects::Settings objects_;
  std::optional<checkpoint::MappedCheckpoint> mapped_;
  std::vector<tensor::TensorView> views_;  // of mapped_
};

}  // namespace syncline::replica
