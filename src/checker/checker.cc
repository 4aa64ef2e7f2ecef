// How it works:
//
//   1. MakeEntries lists what there is to look at, once: every parameter is in one entry.
//   2. Each call divides the entries by IsSkipped, the only place where that is decided. So what is
//      reset, compared and hashed is the same for the same options.
//   3. Entries are cut into pieces, which are worked on in any order by all threads; their results
//      are put together in order. So they do not depend on the number of threads.
//
// Reset leaves padding of the plan at zero: no update writes it, and it would differ for ever.
#include "checker/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/pool.h"
#include "checker/difference.h"
#include "checker/entries.h"
#include "checker/entry_hashes.h"
#include "checker/fp8_values.h"
#include "checker/random_values.h"
#include "checker/snapshot.h"
#include "layout/runs.h"
#include "tensor/digest.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using base::CancelToken;
using base::Code;
using base::Fail;
using base::MutableByteSpan;
using base::Result;
using base::Status;
using base::ThreadPool;

class WeightChecker final : public Checker {
 public:
  WeightChecker(const layout::Plan& plan, const quant::Units& units,
                std::span<const MutableByteSpan> slots)
      : plan_(plan),
        units_(units),
        slots_(slots.begin(), slots.end()),
        live_(slots.begin(), slots.end()),
        stored_(StoredParameters(plan, units)),
        entries_(MakeEntries(plan, units)) {}

  Status Snapshot() override;
  bool has_snapshot() const override { return snapshot_.has_value(); }
  Result<std::vector<std::size_t>> Reset(const CheckOptions& options, std::uint64_t seed) override;
  Result<CompareReport> Compare(const CheckOptions& options, ThreadPool& pool,
                                const CancelToken& cancel) override;
  Result<ChecksumReport> Checksums(const CheckOptions& options, ThreadPool& pool,
                                   const CancelToken& cancel) override;
  std::vector<std::string> SkippedNames(const CheckOptions& options) const override;
  Status PutBack(std::span<const std::size_t> parameters) override;

 private:
  Status NeedSnapshot(std::string_view action) const;
  void ClearPadding(const std::vector<bool>& parameters) const;
  void ClearPaddingOf(const layout::Fill& fill) const;
  ErrorSums ComparePiece(const Piece& piece, base::Pool<base::Buffer>& buffers) const;
  Result<std::vector<ErrorSums>> CompareEntries(ThreadPool& pool, const CancelToken& cancel) const;
  std::vector<bool> Skipped(const CheckOptions& options) const;

  const layout::Plan& plan_;
  const quant::Units& units_;
  const std::vector<MutableByteSpan> slots_;
  const std::vector<ByteSpan> live_;  // the same memory
  const std::vector<Stored> stored_;
  const std::vector<Entry> entries_;
  std::optional<checker::Snapshot> snapshot_;
};

// By number of the entry.
std::vector<bool> WeightChecker::Skipped(const CheckOptions& options) const {
  std::vector<bool> skipped;
  skipped.reserve(entries_.size());
  for (const Entry& entry : entries_) skipped.push_back(IsSkipped(entry.name, options.skip));
  return skipped;
}

std::vector<std::string> WeightChecker::SkippedNames(const CheckOptions& options) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (IsSkipped(entry.name, options.skip)) names.push_back(entry.name);
  }
  return names;
}

Status WeightChecker::NeedSnapshot(std::string_view action) const {
  if (snapshot_) return {};
  return Fail(Code::kOutOfOrder,
              fmt::format("{} needs a snapshot, and none has been taken", action));
}

// The sizes never change, so the memory of the last snapshot serves the next.
Status WeightChecker::Snapshot() {
  if (!snapshot_) {
    SYNCLINE_ASSIGN(snapshot_, checker::Snapshot::Create(slots_));
  }
  snapshot_->Copy(slots_);
  return {};
}

Status WeightChecker::PutBack(std::span<const std::size_t> parameters) {
  SYNCLINE_TRY(NeedSnapshot("putting weights back"));
  for (const std::size_t parameter : parameters) {
    std::ranges::copy(snapshot_->slots()[parameter], slots_[parameter].begin());
  }
  return {};
}

Result<std::vector<std::size_t>> WeightChecker::Reset(const CheckOptions& options,
                                                      std::uint64_t seed) {
  const std::vector<bool> skipped = Skipped(options);
  std::vector<bool> is_reset(stored_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (skipped[i]) continue;
    for (const std::size_t parameter : entries_[i].parameters) {
      const Stored& stored = stored_[parameter];
      FillRandom(stored.dtype, tensor::SplitMix64(seed, parameter),
                 slots_[parameter].first(stored.bytes));
      is_reset[parameter] = true;
    }
  }
  ClearPadding(is_reset);
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < is_reset.size(); ++i) {
    if (is_reset[i]) parameters.push_back(i);
  }
  return parameters;
}

// Padding lies in the load layout. So a unit whose runtime layout is another goes there and back.
void WeightChecker::ClearPadding(const std::vector<bool>& parameters) const {
  std::vector<bool> turned(units_.units().size());
  ThreadPool pool(1);
  for (const layout::Fill& fill : plan_.fills()) {
    if (!parameters[fill.parameter]) continue;
    const std::size_t unit = units_.UnitOf(fill.parameter);
    if (unit != quant::Units::npos && !turned[unit] && units_.units()[unit].scheme->Repacks()) {
      const quant::Unit& own = units_.units()[unit];
      own.scheme->Restore(own.matrix, units_.SlotsOf(unit, slots_), pool);
      turned[unit] = true;
    }
    ClearPaddingOf(fill);
  }
  for (std::size_t unit = 0; unit < turned.size(); ++unit) {
    const quant::Unit& own = units_.units()[unit];
    if (turned[unit]) own.scheme->Process(own.matrix, units_.SlotsOf(unit, slots_), pool);
  }
}

void WeightChecker::ClearPaddingOf(const layout::Fill& fill) const {
  const layout::TensorSpec& parameter = plan_.parameters()[fill.parameter];
  const layout::Place place = {parameter.shape, fill.box};
  layout::FillRuns(layout::FindRuns(parameter.dtype, place, place), slots_[fill.parameter].data());
}

ErrorSums WeightChecker::ComparePiece(const Piece& piece, base::Pool<base::Buffer>& buffers) const {
  const Entry& entry = entries_[piece.entry];
  if (entry.unit != nullptr) return CompareFp8(entry, piece, snapshot_->slots(), live_, buffers);
  const std::uint64_t size = piece.end - piece.begin;
  return CompareValues(entry.dtype, snapshot_->slots()[entry.weight()].subspan(piece.begin, size),
                       live_[entry.weight()].subspan(piece.begin, size));
}

// Of all entries, skipped ones too, by their number.
Result<std::vector<ErrorSums>> WeightChecker::CompareEntries(ThreadPool& pool,
                                                             const CancelToken& cancel) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::ranges::move(PiecesOf(entries_[i], i), std::back_inserter(pieces));
  }
  std::vector<ErrorSums> by_piece(pieces.size());
  base::Pool<base::Buffer> buffers;
  SYNCLINE_TRY(pool.ParallelFor(
      pieces.size(),
      [&](std::size_t i) -> Status {
        by_piece[i] = ComparePiece(pieces[i], buffers);
        return {};
      },
      &cancel));
  std::vector<ErrorSums> by_entry(entries_.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) by_entry[pieces[i].entry].Merge(by_piece[i]);
  return by_entry;
}

Result<CompareReport> WeightChecker::Compare(const CheckOptions& options, ThreadPool& pool,
                                             const CancelToken& cancel) {
  SYNCLINE_TRY(NeedSnapshot("compare"));
  const std::vector<bool> skipped = Skipped(options);
  if (std::ranges::find(skipped, false) == skipped.end()) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("there is nothing to compare: all {} tensors are skipped", entries_.size()));
  }
  SYNCLINE_ASSIGN(const std::vector<ErrorSums> sums, CompareEntries(pool, cancel));
  CompareReport report;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const ErrorSums& errors = sums[i];
    (skipped[i] ? report.skipped : report.compared).push_back(entry.name);
    if (errors.unequal == 0) continue;
    const bool tolerated =
        options.allow_quant_error && entry.unit != nullptr && errors.exceeding == 0;
    const auto values = static_cast<double>(
        entry.unit != nullptr ? entry.bytes / 2 : ValueCount(entry.dtype, entry.bytes));
    auto& list = skipped[i]  ? report.skipped_different
                 : tolerated ? report.tolerated
                             : report.different;
    list.push_back({.name = entry.name,
                    .max_abs_error = errors.max,
                    .mean_abs_error = errors.sum / values,
                    .exceeding = errors.exceeding,
                    .expected = KindText(entry),
                    .actual = KindText(entry)});
  }
  return report;
}

Result<ChecksumReport> WeightChecker::Checksums(const CheckOptions& options, ThreadPool& pool,
                                                const CancelToken& cancel) {
  const std::vector<bool> skipped = Skipped(options);
  std::vector<const Entry*> wanted;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!skipped[i]) wanted.push_back(&entries_[i]);
  }
  SYNCLINE_ASSIGN(std::vector<std::string> hashes,
                  HashEntries(options.hash, wanted, live_, pool, cancel));
  ChecksumReport report;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto& list = wanted[i]->derived ? report.derived : report.tensors;
    list.push_back({.name = wanted[i]->name, .hash = std::move(hashes[i])});
  }
  return report;
}

}  // namespace

std::string CompareReport::Message() const {
  if (different.empty()) return {};
  std::string text = "check tensor equality failed:";
  for (const Difference& one : different) {
    text += fmt::format(
        "\nname={} max_abs_err={:g} mean_abs_err={:g} num_exceed={} expect={} actual={}", one.name,
        one.max_abs_error, one.mean_abs_error, one.exceeding, one.expected, one.actual);
  }
  return text;
}

std::unique_ptr<Checker> MakeChecker(const layout::Plan& plan, const quant::Units& units,
                                     std::span<const MutableByteSpan> slots) {
  return std::make_unique<WeightChecker>(plan, units, slots);
}

}  // namespace syncline::checker
