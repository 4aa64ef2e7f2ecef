// Private to publisher*.cc: one version in the making.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "delta/changed_lines.h"
#include "store/publisher.h"

namespace syncline::store {

struct Publisher::Work {
  std::optional<std::uint64_t> asked;
  std::vector<tensor::TensorView> tensors;
  bool full;
  base::Progress& progress;
  const base::CancelToken* cancel;
  const tensor::Loader* loader = nullptr;  // of tensors, where their bytes are not in memory
  tensor::Arrivals* arrivals = nullptr;    // or where they come one after the other
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::string directory;  // staging
  std::vector<delta::ChangedLines> lines;
  std::vector<std::optional<tensor::Digest>> digests;  // of the tensors; of the last version, then
                                                       // of this one
  std::vector<std::string> written;                    // files, relative to directory
  checkpoint::WeightMap weight_map;                    // of several ranks
  checkpoint::WeightMap copy_map;
  Manifest manifest;
  PublishReport report;
};

// Bytes of the files of a delta without its full copy.
std::uint64_t DeltaBytes(const Manifest& manifest);

}  // namespace syncline::store
