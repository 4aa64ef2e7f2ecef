// Boxes of row-major arrays as packed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Do all pieces of the tensor that this rank holds have the bytes of `tensor_bytes`, the whole
// tensor? True where it holds none.
bool HoldsBytes(const Plan& plan, std::size_t tensor, base::ByteSpan tensor_bytes,
                const std::vector<base::ByteSpan>& parameters);

}  // namespace syncline::layout
