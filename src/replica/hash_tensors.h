// Hashes the contents of a checkpoint on disk, and compares them with what a head says.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "replica/state.h"

namespace syncline::replica {

// Reads every tensor for which `kind_of` (null: xxh3-128 for all) names a kind, in parallel,
// largest first, with read calls; the others get an empty hash. `copy` (may be null) is handed each
// piece as it is read: tensor, offset in its file, bytes; it is called from several threads.
using CopyPiece = std::function<base::Status(const checkpoint::CheckpointTensor&,
                                             std::uint64_t offset, base::ByteSpan bytes)>;
using KindOf = std::function<std::optional<tensor::HashKind>(const std::string& name)>;
base::Result<std::vector<TensorHash>> HashTensors(base::FileSystem& files,
                                                  const checkpoint::Checkpoint& checkpoint,
                                                  const KindOf& kind_of, const CopyPiece& copy,
                                                  base::ThreadPool& pool, base::Progress& progress,
                                                  const base::CancelToken* cancel);

// Ranges of a weight file that none of the checkpoint's tensors covers (its header, above all), in
// order: [begin, end).
std::vector<std::pair<std::uint64_t, std::uint64_t>> UncoveredRanges(
    const checkpoint::Checkpoint& checkpoint, std::size_t file);

// The hash of `bytes` bytes of a file.
base::Result<std::string> HashRange(base::File& file, std::uint64_t offset, std::uint64_t bytes,
                                    tensor::HashKind kind);

// xxh3-128 of the uncovered ranges, or of a whole file.
base::Result<std::string> HashRest(base::FileSystem& files,
                                   const checkpoint::Checkpoint& checkpoint, std::size_t file);
base::Result<std::string> HashFile(base::FileSystem& files, const std::string& path);

// The rests (see Head) of everything in a checkpoint directory: weight files, index, companions.
base::Result<std::map<std::string, std::string, std::less<>>> HashRests(
    base::FileSystem& files, const checkpoint::Checkpoint& checkpoint);

// What of a replica is not as its head says.
struct Damage {
  std::vector<std::string> files;       // missing or not to be opened, or what no tensor covers
  std::vector<std::string> companions;  // other files, which users may have edited
  std::vector<std::string> tensors;  // those in whole files, by name; also unknown and missing ones
  bool weights() const { return !files.empty() || !tensors.empty(); }
};
// `only`: look at no other tensors; null: at all, and at the rests.
base::Result<Damage> FindDamage(const ReplicaState& state, const Head& head,
                                const std::set<std::string>* only, base::ThreadPool& pool,
                                base::Progress& progress, const base::CancelToken* cancel);

}  // namespace syncline::replica
