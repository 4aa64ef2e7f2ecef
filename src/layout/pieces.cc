#include "layout/pieces.h"

#include <cassert>
#include <cstring>

#include "layout/runs.h"

namespace syncline::layout {
namespace {

Box Packed(const Box& box) {
  Box packed = box;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    packed.begin[d] = 0;
    packed.end[d] = box.end[d] - box.begin[d];
  }
  return packed;
}

}  // namespace

std::uint64_t PieceBytes(tensor::Dtype dtype, const Box& box) {
  return box.elements() * tensor::Bits(dtype) / 8;
}

void TakeBox(const TensorSpec& array, const Box& box, base::ByteSpan bytes,
             base::MutableByteSpan packed) {
  assert(packed.size() == PieceBytes(array.dtype, box));
  const Box all = Packed(box);
  CopyRuns(FindRuns(array.dtype, {array.shape, box}, {all.end, all}), bytes.data(), packed.data());
}

void PutBox(const TensorSpec& array, const Box& box, base::ByteSpan packed,
            base::MutableByteSpan bytes) {
  assert(packed.size() == PieceBytes(array.dtype, box));
  const Box all = Packed(box);
  CopyRuns(FindRuns(array.dtype, {all.end, all}, {array.shape, box}), packed.data(), bytes.data());
}

std::vector<OwnedPart> TakeOwned(const Plan& plan, std::size_t tensor,
                                 std::span<const base::ByteSpan> parameters) {
  std::vector<OwnedPart> parts;
  for (const Piece& piece : plan.PiecesOf(tensor)) {
    if (!piece.owner) continue;
    const TensorSpec& parameter = plan.parameters()[piece.parameter];
    OwnedPart& part = parts.emplace_back();
    part.box = piece.source;
    part.bytes.resize(PieceBytes(parameter.dtype, piece.source));
    TakeBox(parameter, piece.destination, parameters[piece.parameter], part.bytes);
  }
  return parts;
}

bool HoldsBytes(const Plan& plan, std::size_t tensor, base::ByteSpan tensor_bytes,
                const std::vector<base::ByteSpan>& parameters) {
  std::vector<std::byte> expected;
  std::vector<std::byte> found;
  for (const Piece& piece : plan.PiecesOf(tensor)) {
    const TensorSpec& spec = plan.tensors()[tensor];
    expected.resize(PieceBytes(spec.dtype, piece.source));
    found.resize(expected.size());
    TakeBox(spec, piece.source, tensor_bytes, expected);
    TakeBox(plan.parameters()[piece.parameter], piece.destination, parameters[piece.parameter],
            found);
    // Of vectors of bytes == compares one at a time.
    if (std::memcmp(expected.data(), found.data(), found.size()) != 0) return false;
  }
  return true;
}

}  // namespace syncline::layout
