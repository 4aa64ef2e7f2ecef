// How a chain of deltas is carried out at once: what has to be read together, and the patches of a
// tensor, one delta's after the other's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "delta/patch.h"
#include "store/delta_reader.h"

namespace syncline::replica {

// What one delta of the chain does to a tensor.
struct ChainPart {
  std::size_t delta = 0;   // in the chain
  std::size_t tensor = 0;  // in its Version::tensors
  std::size_t run = 0;     // of its reader
};

struct ChainTensor {
  std::string name;
  std::vector<ChainPart> parts;  // in the order of the chain; at least one
};

struct ChainTasks {
  std::vector<ChainTensor> tensors;  // by name: everything that any of the deltas changes
  // Each tensor is in one task. Those of a task are carried out in its order; different tasks may run
  // at the same time.
  std::vector<std::vector<std::size_t>> tasks;

  ChainTasks() = default;
  explicit ChainTasks(std::span<const std::unique_ptr<store::DeltaReader>> chain);
};

// The patches of the tensors of one task, each opened when its first tensor comes. One thread.
class ChainPatches {
 public:
  explicit ChainPatches(std::span<const std::unique_ptr<store::DeltaReader>> chain)
      : chain_(chain) {}

  using TargetOf = std::function<store::DeltaReader::Target(std::size_t tensor)>;

  // Goes to the next tensor of the task; `target_of` is asked for tensors of ChainTasks::tensors.
  base::Status Begin(const ChainTasks& tasks, std::size_t tensor, const TargetOf& target_of);

  // What becomes of the tensor's next block (as TensorPatch::Next) by all deltas together. Belongs to
  // this object until the next call. Errors name version, file and tensor.
  base::Result<delta::BlockPatch*> Next(base::ByteSpan old_block);
  base::Status Finish();

 private:
  struct Open {
    std::unique_ptr<delta::TensorPatch> patch;
    std::size_t left = 0;  // tensors of its run
    delta::BlockPatch block;
  };
  using Key = std::pair<std::size_t, std::size_t>;  // delta, run

  std::unexpected<base::Error> Annotate(base::Error error, const ChainPart& part) const;

  std::span<const std::unique_ptr<store::DeltaReader>> chain_;
  std::map<Key, Open> open_;
  std::span<const ChainPart> parts_;
  std::vector<std::byte> image_;
  std::unique_ptr<delta::BlockPatch> folded_;
};

}  // namespace syncline::replica
