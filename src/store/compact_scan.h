// The first half of writing the compact encoding: cuts the tensors of a model into cells and frames,
// and finds out what changed in them.
#pragma once

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
  std::uint64_t units = 0;
  std::uint64_t frames = 1;
};
// All tensors that have bytes.
std::vector<CellPlan> PlanCells(std::span<const tensor::TensorView> tensors, unsigned frame_log);

// A frame in the making: of a number of small tensors, or of a range of one.
struct FrameScan {
  std::size_t cell = 0;
  std::span<const std::size_t> tensors;  // of the plan
  std::uint64_t first_unit = 0;          // of the one tensor
  std::uint64_t units = 0;
  delta::ClassRule rule;

  // What the scan found, for the tensors that changed.
  std::vector<delta::PieceChanges> pieces;
  std::vector<delta::DensePart> dense;
  std::size_t parts = 0;  // of both sorts
  // After Join.
  std::vector<delta::Change> changes;
  std::unique_ptr<delta::StepCounts> counts;  // of `changes`; null without a stream

  bool changed() const { return parts > 0; }
  bool has_stream() const { return parts > dense.size(); }
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

  // Scans frames, which follow one another in the order of AddFrames over all calls.
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
    tensor::Digest difference;
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
  base::Pool<std::vector<std::byte>> buffers_;
};

}  // namespace syncline::store
