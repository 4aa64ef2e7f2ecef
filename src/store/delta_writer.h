// Encodes the difference of two sets of tensors and writes it as the files of a delta version.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/writer.h"
#include "delta/changed_lines.h"
#include "store/manifest.h"
#include "store/version.h"
#include "tensor/arrivals.h"
#include "tensor/digest.h"
#include "tensor/view.h"

namespace syncline::store {

struct DeltaFiles {
  std::string prefix;  // of one of several writers that fill a directory together: files are named
                       // "<prefix>00000.safetensors" and so on, and there is no index; empty: the
                       // only writer
  bool durable = true;
  const tensor::Loader* loader = nullptr;  // where the new tensors' bytes are not in memory
  tensor::Arrivals* arrivals = nullptr;    // or where they come as they are made (compact only)
  delta::EncodingChoice choice;            // of the form, where the encoding has several
  // Of each old tensor, where it is known (only compact makes use of it); receives those of the new
  // ones. May be null.
  std::vector<std::optional<tensor::Digest>>* digests = nullptr;
};

struct DeltaCounts {
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements_changed = 0;
  std::vector<ManifestTensor> tensors;  // that changed, by name
  std::vector<std::string> files;       // written; the index is one of them
  checkpoint::WeightMap weight_map;     // which file holds the frame of each
};

// Writes the index and the frames of what differs between `old_tensors` and `new_tensors` (the same
// names, dtypes and shapes at the same places) into a directory that exists. lines[i] receives what
// changed in tensor i. Tensors are encoded in parallel, large ones in parts; beside the inputs at
// most about 200 MiB plus the largest frame are held. On failure what was written stays.
base::Result<DeltaCounts> WriteDelta(base::FileSystem& files, const std::string& directory,
                                     std::span<const tensor::TensorView> old_tensors,
                                     std::span<const tensor::TensorView> new_tensors,
                                     const DeltaInfo& info, const DeltaFiles& how,
                                     std::vector<delta::ChangedLines>& lines,
                                     base::ThreadPool& pool, base::Progress& progress,
                                     const base::CancelToken* cancel);

}  // namespace syncline::store
