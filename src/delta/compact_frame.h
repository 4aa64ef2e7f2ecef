// Frames of the compact encoding (docs/format.md, "The encoding compact"): from two images of tensors
// to changes, from changes to bytes, and back over the old image.
//
// Writing has two halves, because what is frequent has to be known before it is coded: ScanPiece for
// every piece of a tensor, in any order and on any thread; then JoinFrame, StepModel::Of what was
// counted, and EncodeFrame.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/changed_lines.h"
#include "delta/step_code.h"
#include "delta/step_kernels.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"

namespace syncline::delta {

// What changed in the units of one tensor that lie in one frame.
struct PieceChanges {
  std::vector<Change> changes;  // by block, class and position; gaps count from the piece's start
  ClassCounts after = {};       // units of each class after its last change
};

// Looks at the units of one piece as they come. One thread.
class PieceScanner {
 public:
  explicit PieceScanner(const ClassRule& rule)
      : rule_(rule), block_(std::make_unique_for_overwrite<Change[]>(kStepBlockUnits)) {}

  // The next units, as many bytes of both; all but the last call with a multiple of kStepBlockUnits.
  // `offset` of these bytes in the tensor, whose changed lines are marked and whose digest (may be
  // null) is told. Returns the elements that changed; `units_per_element` units are one.
  std::uint64_t Scan(base::ByteSpan old_bytes, base::ByteSpan new_bytes, std::uint64_t offset,
                     std::size_t units_per_element, ChangedLines& lines,
                     tensor::DigestChange* digest);

  PieceChanges Take() { return std::move(piece_); }

 private:
  ClassRule rule_;
  PieceChanges piece_;
  std::unique_ptr<Change[]> block_;  // changes of one block
};

// Bits that the changes would take, counted by a code of their own, and bits of the new bytes in
// planes, by the frequency of their bytes: which is smaller decides whether a piece is dense.
double SparseBits(const PieceChanges& piece, UnitKind kind);
double DenseBits(base::ByteSpan new_bytes, std::size_t unit_bytes);

// The new units, a plane for each byte of a unit, as a frame holds them.
base::Result<std::vector<std::byte>> EncodePlanes(base::ByteSpan new_bytes, std::size_t unit_bytes);

// The changes of all pieces of a frame in a row, in the order of its tensors.
std::vector<Change> JoinFrame(std::vector<PieceChanges> pieces);

// Adds what a frame with these changes has to code.
void CountFrame(std::span<const Change> changes, UnitKind kind, unsigned classes,
                StepCounts& counts);

// A part of a frame whose tensor is given as planes; `tensor`: its index in the cell.
struct DensePart {
  std::size_t tensor = 0;
  std::vector<std::byte> planes;  // as EncodePlanes made them
};

// `dense` ascending; `has_stream` is false if all tensors of the frame are dense.
std::vector<std::byte> EncodeFrame(std::span<const Change> changes, UnitKind kind, bool has_stream,
                                   std::span<const DensePart> dense, unsigned classes,
                                   const StepEncodeTables& tables);

// Reads one frame, block by block, over the old units.
class FrameDecoder {
 public:
  struct Part {
    std::uint64_t units = 0;  // of the tensor, in the frame
  };

  // `frame` has kBytesBefore readable bytes before it and must stay valid, like `tables`, which must
  // be checked for `kind` (StepDecodeTables::Check). kCorrupt if it is no frame for such parts.
  base::Status Open(base::ByteSpan frame, UnitKind kind, std::span<const Part> parts,
                    const StepDecodeTables& tables);

  // The next block of part `part`: kStepBlockUnits units, or what the part has left. Blocks come in
  // order. Sets the bits of units that change, and writes these, or all, units into their places in
  // `new_units`, which may be `old_units`. A bit may be set for a unit that does not change.
  base::Status Next(std::size_t part, const std::byte* old_units, std::size_t units,
                    std::byte* new_units, UnitMask& changed);

  // kCorrupt if anything was left.
  base::Status Finish() const;

 private:
  struct Planes {
    std::size_t part = 0;
    std::uint64_t units = 0;
    std::uint64_t at = 0;
    std::vector<std::byte> bytes;  // one plane after the other
  };

  UnitKind kind_ = UnitKind::kPlain8;
  StepReader reader_;
  bool has_stream_ = false;
  std::vector<Planes> dense_;
};

}  // namespace syncline::delta
