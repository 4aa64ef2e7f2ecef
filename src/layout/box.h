// Boxes in the index space of an array, and whether a set of them is disjoint or leaves a gap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace syncline::layout {

// Half-open ranges [begin, end) in each dimension.
struct Box {
  std::vector<std::uint64_t> begin;
  std::vector<std::uint64_t> end;
  std::uint64_t elements() const;  // 1 without dimensions
  bool operator==(const Box&) const = default;
};

Box WholeBox(tensor::Shape shape);

// "[0:4, 8:16]"
std::string BoxText(const Box& box);

// What follows takes boxes that are not empty, have as many dimensions as the array and lie inside
// it.

// Two of the boxes that have an element in common. Near-linear where the boxes divide mainly one
// dimension; for a grid the number of boxes times that of the boxes across the longer direction.
std::optional<std::pair<std::size_t, std::size_t>> FindOverlap(std::span<const Box* const> boxes);

// The first element in row-major order that is in none of the boxes. Quadratic in their number: for
// messages only.
std::optional<std::vector<std::uint64_t>> FirstGap(tensor::Shape shape,
                                                   std::span<const Box* const> boxes);

}  // namespace syncline::layout
