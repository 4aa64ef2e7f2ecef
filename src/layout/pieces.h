// Boxes of row-major arrays as packed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "layout/plan.h"

namespace syncline::layout {

// Of the box's content.
std::uint64_t PieceBytes(tensor::Dtype dtype, const Box& box);

// Copies a box out of an array of that shape into `packed`, row-major, and the other way round.
// `packed` has PieceBytes.
void TakeBox(const TensorSpec& array, const Box& box, base::ByteSpan bytes,
             base::MutableByteSpan packed);
void PutBox(const TensorSpec& array, const Box& box, base::ByteSpan packed,
            base::MutableByteSpan bytes);

// A part of a checkpoint tensor that a rank owns, packed row-major.
struct OwnedPart {
  Box box;  // in the checkpoint tensor
  std::vector<std::byte> bytes;
};

// The content of the owning pieces of a tensor, in their order.
std::vector<OwnedPart> TakeOwned(const Plan& plan, std::size_t tensor,
                                 std::span<const base::ByteSpan> parameters);

// Do all pieces of the tensor that this rank holds have the bytes of `tensor_bytes`, the whole
// tensor? True where it holds none.
bool HoldsBytes(const Plan& plan, std::size_t tensor, base::ByteSpan tensor_bytes,
                const std::vector<base::ByteSpan>& parameters);

}  // namespace syncline::layout
