#include "store/compact_scan.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "tensor/unit_mask.h"

namespace syncline::store {
namespace {

using base::ByteSpan;
using base::Result;
using base::Status;
using delta::UnitKind;
using tensor::TensorView;

constexpr std::uint64_t kScanBytes = 256 << 10;  // scanned and hashed while they are in the cache
constexpr std::uint64_t kFusedBytes = 8 << 20;   // a tensor above is hashed apart from its frames
constexpr std::uint64_t kDenseShare = 4;         // a piece may be dense if one unit in four changes

std::uint64_t UnitsOf(const TensorView& view) {
  return view.bytes.size() / delta::UnitBytes(delta::KindOf(view.dtype));
}

}  // namespace

std::vector<CellPlan> PlanCells(std::span<const TensorView> tensors, unsigned frame_log) {
  const std::uint64_t frame_units = std::uint64_t{1} << frame_log;
  std::vector<CellPlan> cells;
  std::map<UnitKind, std::size_t> open;  // the cell that takes small tensors
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t units = UnitsOf(tensors[i]);
    if (units == 0) continue;
    const UnitKind kind = delta::KindOf(tensors[i].dtype);
    if (units >= frame_units) {
      cells.push_back(
          {.kind = kind, .tensors = {i}, .units = units, .frames = (units + frame_units - 1) >> frame_log});
      continue;
    }
    const auto found = open.find(kind);
    if (found != open.end() && cells[found->second].units + units <= frame_units) {
      cells[found->second].tensors.push_back(i);
      cells[found->second].units += units;
      continue;
    }
    open[kind] = cells.size();
    cells.push_back({.kind = kind, .tensors = {i}, .units = units});
  }
  return cells;
}

std::uint64_t FrameScan::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const delta::PieceChanges& piece : pieces) {
    bytes += piece.changes.capacity() * sizeof(delta::Change);
  }
  for (const delta::DensePart& part : dense) bytes += part.planes.size();
  return bytes;
}

void FrameScan::Join() {
  if (!has_stream()) return;
  changes = delta::JoinFrame(std::move(pieces));
  pieces.clear();
  counts = std::make_unique<delta::StepCounts>();
  delta::CountFrame(changes, rule.kind, rule.classes, *counts);
}

void FrameScan::Free() {
  pieces = {};
  dense = {};
  changes = {};
  counts.reset();
}

void AddFrames(const CellPlan& plan, std::size_t cell, unsigned frame_log,
               std::vector<FrameScan>& work) {
  for (std::uint64_t i = 0; i < plan.frames; ++i) {
    const std::uint64_t first = i << frame_log;
    FrameScan frame;
    frame.cell = cell;
    frame.rule.kind = plan.kind;
    frame.tensors = plan.tensors;
    frame.first_unit = first;
    frame.units = std::min(plan.units - first, std::uint64_t{1} << frame_log);
    work.push_back(std::move(frame));
  }
}

delta::ClassRule ChooseRule(const delta::StepSample& sample, const delta::EncodingChoice& choice) {
  const delta::StepSample::Choice best = sample.Choose();
  delta::ClassRule rule = {.kind = sample.kind(), .classes = 1, .base = 0};
  if (!IsFloat(sample.kind()) || choice.form == delta::CompactForm::kGaps) return rule;
  if (choice.form == delta::CompactForm::kAuto) {
    // Seconds to write and to read, on one core; measured (docs/performance.md).
    constexpr double kClassUnit = 0.4e-9;
    constexpr double kClassChange = 40e-9;
    constexpr double kGapUnit = 0.15e-9;
    constexpr double kGapChange = 20e-9;
    // Where nothing is known of the link, the size decides, if there is a difference.
    if (choice.link_gbps == 0 && best.class_bits > 0.97 * best.gap_bits) return rule;
    if (choice.link_gbps > 0) {
      const auto units = static_cast<double>(sample.units());
      const double bit_seconds = 1e-9 / choice.link_gbps;
      const double classes =
          best.class_bits * bit_seconds + units * kClassUnit + best.changed * kClassChange;
      const double gaps =
          best.gap_bits * bit_seconds + units * kGapUnit + best.changed * kGapChange;
      if (gaps <= classes) return rule;
    }
  }
  rule.classes = delta::kMaxClasses;
  rule.base = best.base;
  return rule;
}

Result<ByteSpan> CompactScanner::NewBytes(std::size_t tensor, std::uint64_t begin,
                                          std::uint64_t size,
                                          std::vector<std::byte>& buffer) const {
  if (input_.loader == nullptr) return input_.new_tensors[tensor].bytes.subspan(begin, size);
  return input_.loader->Load(tensor, begin, size, buffer);
}

Status CompactScanner::AddSample(const FrameScan& frame, std::uint64_t unit,
                                 delta::StepSample& sample) {
  unit += frame.first_unit;
  const std::size_t unit_bytes = delta::UnitBytes(sample.kind());
  for (const std::size_t tensor : frame.tensors) {
    const std::uint64_t units = UnitsOf(input_.new_tensors[tensor]);
    if (unit >= units) {
      unit -= units;
      continue;
    }
    const std::uint64_t begin = unit * unit_bytes;
    const std::uint64_t size =
        std::min<std::uint64_t>(units - unit, delta::kStepBlockUnits) * unit_bytes;
    const base::Pool<std::vector<std::byte>>::Lease buffer(buffers_);
    SYNCLINE_ASSIGN(const ByteSpan bytes, NewBytes(tensor, begin, size, *buffer));
    sample.Add(input_.old_tensors[tensor].bytes.subspan(begin, size), bytes);
    return {};
  }
  return {};
}

Status CompactScanner::Scan(std::span<FrameScan> frames, base::ThreadPool& pool,
                            base::Progress& progress, const base::CancelToken* cancel) {
  std::vector<Task> tasks;
  for (FrameScan& frame : frames) {
    const std::uint64_t cost = 4 * frame.units * delta::UnitBytes(frame.rule.kind);
    const std::size_t tensor = frame.tensors.front();
    const std::uint64_t bytes = input_.new_tensors[tensor].bytes.size();
    const bool several = frame.units < UnitsOf(input_.new_tensors[tensor]);
    // What is loaded is read once, so that frames and hash are of the same bytes: the frames of a
    // tensor follow one another.
    if (several && (input_.loader != nullptr || bytes <= kFusedBytes) && !tasks.empty() &&
        !tasks.back().frames.empty() && tasks.back().frames.back()->cell == frame.cell) {
      tasks.back().frames.push_back(&frame);
      tasks.back().cost += cost;
      continue;
    }
    if (several && input_.loader == nullptr && bytes > kFusedBytes && frame.first_unit == 0) {
      tasks.push_back({.frames = {}, .to_hash = tensor, .cost = bytes});
    }
    tasks.push_back({.frames = {&frame}, .to_hash = std::nullopt, .cost = cost});
  }
  std::ranges::stable_sort(tasks, std::ranges::greater(), &Task::cost);
  return pool.ParallelFor(
      tasks.size(),
      [&](std::size_t i) -> Status {
        if (tasks[i].to_hash) {
          const std::size_t tensor = *tasks[i].to_hash;
          states_[tensor].hash =
              tensor::HashHex(tensor::HashKind::kXxh3, input_.new_tensors[tensor].bytes);
          return {};
        }
        for (FrameScan* frame : tasks[i].frames) SYNCLINE_TRY(ScanFrame(*frame, progress));
        return {};
      },
      cancel);
}

Status CompactScanner::ScanFrame(FrameScan& frame, base::Progress& progress) {
  if (frame.tensors.size() > 1) {
    for (const std::size_t tensor : frame.tensors) {
      const auto hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
      SYNCLINE_TRY(
          ScanPiece(frame, tensor, 0, UnitsOf(input_.new_tensors[tensor]), hasher.get(), progress));
      states_[tensor].hash = hasher->Hex();
    }
    return {};
  }
  const std::size_t tensor = frame.tensors.front();
  const TensorView& view = input_.new_tensors[tensor];
  State& state = states_[tensor];
  const std::uint64_t units = UnitsOf(view);
  const bool fused =
      input_.loader != nullptr || view.bytes.size() <= kFusedBytes || frame.units == units;
  if (fused && state.hasher == nullptr) state.hasher = tensor::MakeHasher(tensor::HashKind::kXxh3);
  SYNCLINE_TRY(ScanPiece(frame, tensor, frame.first_unit, frame.units,
                         fused ? state.hasher.get() : nullptr, progress));
  if (fused && frame.first_unit + frame.units == units) state.hash = state.hasher->Hex();
  return {};
}

Status CompactScanner::ScanPiece(FrameScan& frame, std::size_t tensor, std::uint64_t first_unit,
                                 std::uint64_t units, tensor::Hasher* hasher,
                                 base::Progress& progress) {
  const TensorView& view = input_.new_tensors[tensor];
  const std::size_t unit_bytes = delta::UnitBytes(frame.rule.kind);
  const std::size_t per_element =
      std::max<std::size_t>(tensor::Bits(view.dtype) / 8 / unit_bytes, 1);
  const std::uint64_t begin = first_unit * unit_bytes;
  const std::uint64_t end = begin + units * unit_bytes;
  const base::Pool<std::vector<std::byte>>::Lease buffer(buffers_);
  // A piece that may become dense is needed whole.
  SYNCLINE_ASSIGN(const ByteSpan new_bytes, NewBytes(tensor, begin, end - begin, *buffer));
  const ByteSpan old_bytes = input_.old_tensors[tensor].bytes.subspan(begin, end - begin);
  delta::PieceScanner scanner(frame.rule);
  tensor::DigestChange digest(unit_bytes);
  std::uint64_t changed = 0;
  for (std::uint64_t at = 0; at < new_bytes.size(); at += kScanBytes) {
    const std::uint64_t size = std::min<std::uint64_t>(kScanBytes, new_bytes.size() - at);
    changed += scanner.Scan(old_bytes.subspan(at, size), new_bytes.subspan(at, size), begin + at,
                            per_element, input_.lines[tensor], &digest);
    if (hasher != nullptr) hasher->Update(new_bytes.subspan(at, size));
    progress.Add(size);
  }
  if (changed == 0) return {};
  delta::PieceChanges piece = scanner.Take();
  if (piece.changes.size() * kDenseShare > units &&
      delta::DenseBits(new_bytes, unit_bytes) < delta::SparseBits(piece, frame.rule.kind)) {
    SYNCLINE_ASSIGN(std::vector<std::byte> planes, delta::EncodePlanes(new_bytes, unit_bytes));
    frame.dense.push_back({frame.parts, std::move(planes)});
  } else {
    frame.pieces.push_back(std::move(piece));
  }
  ++frame.parts;
  const std::scoped_lock lock(mutex_);
  states_[tensor].changed += changed;
  states_[tensor].difference += digest.difference();
  return {};
}

std::optional<delta::CompactTensor> CompactScanner::Finish(std::size_t tensor) {
  State& state = states_[tensor];
  if (state.changed == 0) return std::nullopt;
  const TensorView& view = input_.new_tensors[tensor];
  std::optional<tensor::Digest>& digest = input_.digests[tensor];
  if (!digest) {
    digest =
        tensor::DigestOf(input_.old_tensors[tensor].bytes, tensor::DigestUnitBytes(view.dtype));
  }
  *digest += state.difference;
  delta::CompactTensor row{.name = view.name,
                           .dtype = view.dtype,
                           .shape = view.shape,
                           .changed_elements = state.changed,
                           .hash = std::move(state.hash),
                           .digest = *digest,
                           .bytes = view.bytes.size()};
  state = {};
  return row;
}

}  // namespace syncline::store
