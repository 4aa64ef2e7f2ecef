// How two checkpoints differ, and what each encoding would make of it. For syncline diff.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "delta/compare.h"

namespace syncline::cli {

// A checkpoint with its files open.
struct Side {
  checkpoint::Checkpoint checkpoint;
  std::vector<std::unique_ptr<base::File>> files;
};

// Bytes of frames, without what a version has beside them.
struct EncodedSizes {
  std::uint64_t xor_bytes = 0;
  std::optional<std::uint64_t> overwrite_bytes = 0;  // nothing: a tensor is too large for it
  std::uint64_t compact_bytes = 0;                   // predicted, as the next one
  std::uint64_t compact_gap_bytes = 0;

  EncodedSizes& operator+=(const EncodedSizes& other);
};

// A tensor of both sides.
struct TensorPair {
  const checkpoint::CheckpointTensor* a = nullptr;
  const checkpoint::CheckpointTensor* b = nullptr;
  delta::StepHistogram steps;
  EncodedSizes sizes;
};

// Points into the sides' checkpoints.
struct Difference {
  std::vector<TensorPair> pairs;  // of the same dtype and shape
  std::vector<const checkpoint::CheckpointTensor*> only_a;
  std::vector<const checkpoint::CheckpointTensor*> only_b;
  std::vector<TensorPair> unlike;  // the same name, another dtype or shape
  delta::StepHistogram steps;      // of all pairs
  EncodedSizes sizes;
  std::uint64_t tensors_changed = 0;
  std::uint64_t bytes = 0;  // of one side of all pairs
};

// Reads both sides in pieces, several at a time: the memory taken does not grow with the model.
base::Result<Difference> Compare(const Session& session, const Side& a, const Side& b);

}  // namespace syncline::cli
