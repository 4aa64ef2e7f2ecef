// The first half of writing the compact encoding: cuts the tensors of a model into cells and frames,
// and finds out what changed in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "delta/changed_lines.h"
#include "delta/class_choice.h"
#include "delta/compact_frame.h"
#include "delta/compact_table.h"
#include "delta/encoding.h"
#include "tensor/digest.h"
#include "tensor/hash.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::store {

// Both lists have the same tensors, by name.
struct ScanInput {
  std::span<const tensor::TensorView> old_tensors;
  std::span<const tensor::TensorView> new_tensors;
  const tensor::Loader* loader = nullptr;               // where the new bytes are not in memory
  std::vector<delta::ChangedLines>& lines;              // of each tensor; receives what changed
  std::vector<std::optional<tensor::Digest>>& digests;  // of the old tensors, then of the new ones
};

// A cell as it would be if all its tensors changed.
struct CellPlan {
  delta::UnitKind kind = delta::UnitKind::kPlain8;
  std::vector<std::size_t> tensors;  // ascending
  std::vector<std::uint64_t> sizes;  // of each, in units
  std::uint64_t units = 0;
  std::uint64_t frames = 1;

  std::uint64_t UnitsOf(std::size_t tensor) const {
    const auto found = std::ranges::lower_bound(tensors, tensor);
    return sizes[static_cast<std::size_t>(found - tensors.begin())];
  }
};
// All tensors that have bytes.
std::vector<CellPlan> PlanCells(std::span<const tensor::TensorView> tensors, unsigned frame_log);

// What the scan found in a tensor that changed, or in the range of it that lies in one frame.
struct FramePart {
  std::size_t tensor = 0;
  delta::PieceChanges changes;
  std::vector<std::byte> planes;  // of a dense part, which has no changes

  bool dense() const { return !planes.empty(); }
  std::uint64_t held_bytes() const {
    return changes.changes.capacity() * sizeof(delta::Change) + planes.size();
  }
};

// A frame in the making: of a number of small tensors, or of a range of one.
struct FrameScan {
  std::size_t cell = 0;
  std::span<const std::size_t> tensors;  // of the plan, or some of them
  std::uint64_t first_unit = 0;          // of the one tensor
  std::uint64_t units = 0;
  delta::ClassRule rule;

  std::vector<FramePart> parts;  // by tensor; only what changed
  // After Join.
  std::vector<delta::Change> changes;
  std::vector<delta::DensePart> dense;
  bool has_stream = false;
  std::unique_ptr<delta::StepCounts> counts;  // of `changes`; null without a stream

  bool changed() const { return !parts.empty() || has_stream || !dense.empty(); }
  std::uint64_t held_bytes() const;
  void Join();
  void Free();
};

// Appends the frames of a cell, with the rule of its kind of units but no classes yet.
void AddFrames(const CellPlan& plan, std::size_t cell, unsigned frame_log,
               std::vector<FrameScan>& work);

// The rule for units of which `sample` are some.
delta::ClassRule ChooseRule(const delta::StepSample& sample, const delta::EncodingChoice& choice);

class CompactScanner {
 public:
  explicit CompactScanner(const ScanInput& input)
      : input_(input), states_(input.new_tensors.size()) {}

  // Adds the block at `unit` of a frame to the sample.
  base::Status AddSample(const FrameScan& frame, std::uint64_t unit, delta::StepSample& sample);

  // Scans frames. Those of one tensor follow one another, also over several calls.
  base::Status Scan(std::span<FrameScan> frames, base::ThreadPool& pool, base::Progress& progress,
                    const base::CancelToken* cancel);

  // Once all frames of a tensor were scanned: its row of the table, or nothing if it did not change.
  // Its entries of `lines` and `digests` are complete then.
  std::optional<delta::CompactTensor> Finish(std::size_t tensor);

 private:
  // Of a tensor whose frames are scanned one by one.
  struct State {
    std::unique_ptr<tensor::Hasher> hasher;  // of what is loaded, in the order of the frames
    std::string hash;                        // once it is known
    std::uint64_t changed = 0;               // elements
    tensor::Digest difference;               // of the new tensor less the old one
    tensor::Digest whole;                    // of the new one, where that of the old is not known
  };

  struct Task {
    std::vector<FrameScan*> frames;      // to scan, in order
    std::optional<std::size_t> to_hash;  // or a tensor to hash
    std::uint64_t cost = 0;
  };

  base::Status ScanFrame(FrameScan& frame, base::Progress& progress);
  base::Status ScanPiece(FrameScan& frame, std::size_t tensor, std::uint64_t first_unit,
                         std::uint64_t units, tensor::Hasher* hasher, base::Progress& progress);
  base::Result<base::ByteSpan> NewBytes(std::size_t tensor, std::uint64_t begin, std::uint64_t size,
                                        std::vector<std::byte>& buffer) const;

  const ScanInput& input_;
  std::vector<State> states_;
  std::mutex mutex_;  // of the sums in states_, to which frames of one tensor add
  base::Pool<std::vector<std::byte>> buffers_;      // of what is loaded
  base::Pool<std::vector<delta::Change>> scratch_;  // of what is scanned
};

}  // namespace syncline::store
