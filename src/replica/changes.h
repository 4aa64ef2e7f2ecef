// The change record: what each pull changed, so that the question "what differs between version u
// and what is held now" has an answer without reading the checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "replica/state.h"

namespace syncline::replica {

struct ChangedTensor {
  std::string name;
  std::uint64_t elements = 0;  // that differ; summed over several versions an upper bound
};

// One step of a replica, forwards or back.
struct Change {
  HeldVersion from;
  HeldVersion to;
  bool everything = false;             // another checkpoint took the place of the one before
  std::vector<ChangedTensor> tensors;  // otherwise
};

// Appends to the record. A failure is logged: the record then has a gap, which readers see.
void RecordChange(const ReplicaState& state, const Change& change);

struct ChangeSummary {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  bool everything = false;             // also where the record does not reach back to `from`
  std::vector<ChangedTensor> tensors;  // by name
};

// What may differ between version `since`, as this replica last held it, and what it holds now: no
// tensor that differs is left out. kNotFound if the replica holds no whole version.
base::Result<ChangeSummary> ChangesSince(base::FileSystem& files, const std::string& replica,
                                         std::uint64_t since);

}  // namespace syncline::replica
