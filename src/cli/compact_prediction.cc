#include "cli/compact_prediction.h"

#include <algorithm>
#include <cmath>

#include "delta/changed_lines.h"
#include "delta/compact_table.h"

namespace syncline::cli {
namespace {

using base::ByteSpan;
using base::Status;
using delta::StepCounts;
using delta::UnitKind;

constexpr std::uint64_t kFrameUnits = std::uint64_t{1} << delta::kFrameLog;
constexpr std::uint64_t kDenseShare = 4;  // a piece may be dense if one unit in four changes
// The number of dense parts, the states, and what the last byte has left.
constexpr double kFrameBits = 8 + delta::kGapLog + delta::kStepLog + 4;

double ExtraBitsOf(const StepCounts& counts) {
  double bits = 0;
  for (std::size_t c = 0; c < delta::kMaxClasses; ++c) {
    for (std::uint32_t symbol = 0; symbol < delta::kTokens; ++symbol) {
      const std::uint32_t gap_bits = symbol == 0 ? 0 : delta::ExtraBits(symbol - 1);
      bits += static_cast<double>(counts.gaps[c][symbol]) * gap_bits;
      bits += static_cast<double>(counts.steps[c][symbol]) * (delta::ExtraBits(symbol) + 1);
    }
  }
  return bits;
}

StepCounts Ends(unsigned classes, std::uint32_t frames) {
  StepCounts ends;
  for (std::size_t c = 0; c < classes; ++c) ends.gaps[c][delta::kEndSymbol] = frames;
  return ends;
}

}  // namespace

CompactPrediction::CompactPrediction(std::vector<tensor::Dtype> dtypes) : tensors_(dtypes.size()) {
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    tensors_[i].kind = delta::KindOf(dtypes[i]);
    kinds_.try_emplace(tensors_[i].kind, Kind{delta::StepSample(tensors_[i].kind), {}});
  }
}

void CompactPrediction::AddSample(std::size_t tensor, ByteSpan old_bytes, ByteSpan new_bytes) {
  kinds_.at(tensors_[tensor].kind).sample.Add(old_bytes, new_bytes);
}

void CompactPrediction::ChooseRules() {
  for (auto& [kind, chosen] : kinds_) {
    chosen.rules[kClasses] =
        store::ChooseRule(chosen.sample, {delta::Encoding::kCompact, delta::CompactForm::kClasses});
    chosen.rules[kGaps] =
        store::ChooseRule(chosen.sample, {delta::Encoding::kCompact, delta::CompactForm::kGaps});
  }
}

Status CompactPrediction::Add(std::size_t tensor, ByteSpan old_bytes, ByteSpan new_bytes) {
  SYNCLINE_TRY(AddForm(tensors_[tensor], kClasses, old_bytes, new_bytes));
  SYNCLINE_TRY(AddForm(tensors_[tensor], kGaps, old_bytes, new_bytes));
  const std::scoped_lock lock(mutex_);
  tensors_[tensor].units += new_bytes.size() / delta::UnitBytes(tensors_[tensor].kind);
  return {};
}

Status CompactPrediction::AddForm(Tensor& tensor, Form form, ByteSpan old_bytes,
                                  ByteSpan new_bytes) {
  const delta::ClassRule& rule = kinds_.at(tensor.kind).rules[form];
  const std::size_t unit_bytes = delta::UnitBytes(tensor.kind);
  std::vector<delta::Change> scratch;
  delta::PieceScanner scanner(rule, scratch);
  delta::ChangedLines lines(new_bytes.size());
  if (scanner.Scan(old_bytes, new_bytes, 0, 1, lines, nullptr) == 0) return {};
  const delta::PieceChanges piece = scanner.Take();
  Found& found = tensor.found[form];
  if (piece.changes.size() * kDenseShare > new_bytes.size() / unit_bytes &&
      delta::DenseBits(new_bytes, unit_bytes) < delta::SparseBits(piece, tensor.kind)) {
    SYNCLINE_ASSIGN(const std::vector<std::byte> planes,
                    delta::EncodePlanes(new_bytes, unit_bytes));
    const std::scoped_lock lock(mutex_);
    found.dense_bytes += planes.size();
    return {};
  }
  auto counts = std::make_unique<StepCounts>();
  delta::CountFrame(piece.changes, tensor.kind, 0, *counts);
  const std::scoped_lock lock(mutex_);
  if (found.counts == nullptr) {
    found.counts = std::move(counts);
  } else {
    *found.counts += *counts;
  }
  return {};
}

std::vector<CompactPrediction::Sizes> CompactPrediction::Finish() const {
  std::vector<Sizes> sizes(tensors_.size());
  for (const auto& [kind, chosen] : kinds_) {
    FinishForm(kind, kClasses, sizes);
    FinishForm(kind, kGaps, sizes);
  }
  return sizes;
}

void CompactPrediction::FinishForm(UnitKind kind, Form form, std::vector<Sizes>& sizes) const {
  // Small tensors share the frames that they fill together.
  std::uint64_t small_units = 0;
  std::uint64_t small = 0;  // that changed
  std::uint64_t frames = 0;
  StepCounts counts;
  for (const Tensor& tensor : tensors_) {
    if (tensor.kind != kind) continue;
    if (tensor.units < kFrameUnits) small_units += tensor.units;
    if (!tensor.found[form].changed()) continue;
    if (tensor.units >= kFrameUnits) {
      frames += (tensor.units + kFrameUnits - 1) / kFrameUnits;
    } else {
      ++small;
    }
    if (tensor.found[form].counts != nullptr) counts += *tensor.found[form].counts;
  }
  const std::uint64_t shared = std::min(small, (small_units + kFrameUnits - 1) / kFrameUnits);
  frames += shared;
  const delta::ClassRule& rule = kinds_.at(kind).rules[form];
  counts += Ends(rule.classes, static_cast<std::uint32_t>(frames));
  const delta::StepModel model = delta::StepModel::Of(counts, rule.classes, rule.base);
  const double frame_bits = kFrameBits + model.Cost(Ends(rule.classes, 1));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const Found& found = tensor.found[form];
    if (tensor.kind != kind || !found.changed()) continue;
    const std::uint64_t whole_frames = (tensor.units + kFrameUnits - 1) / kFrameUnits;
    const double own_frames = tensor.units >= kFrameUnits
                                  ? static_cast<double>(whole_frames)
                                  : static_cast<double>(shared) / static_cast<double>(small);
    double bits = 8 * static_cast<double>(found.dense_bytes) + own_frames * frame_bits;
    if (found.counts != nullptr) bits += model.Cost(*found.counts) + ExtraBitsOf(*found.counts);
    // At least one byte: it did change.
    const auto bytes = static_cast<std::uint64_t>(std::max(1.0, std::round(bits / 8)));
    (form == kClasses ? sizes[i].classes : sizes[i].gaps) = bytes;
  }
}

}  // namespace syncline::cli
