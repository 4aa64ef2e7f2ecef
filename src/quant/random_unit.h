// For tests: random matrices and bytes for the slots of their units, drawn inside a RapidCheck
// property.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quant/scheme.h"

namespace syncline::quant {

// Uniform in [begin, end) (inRange alone gives small numbers in the first runs).
std::uint64_t Draw(std::uint64_t begin, std::uint64_t end);

// Memory of one unit. Bytes behind those of a layout are of no meaning.
struct SlotMemory {
  explicit SlotMemory(const std::vector<Slot>& slots);
  std::vector<base::MutableByteSpan> Views();
  std::vector<base::ByteSpan> ConstViews() const;
  bool operator==(const SlotMemory&) const = default;

  std::vector<std::vector<std::byte>> bytes;
};

// Random bytes; of an F32 slot scales: powers of two, others, and some that make no sense.
SlotMemory RandomLoad(const std::vector<Slot>& slots);

// Of one layout: what follows its bytes is cut off.
SlotMemory Cut(const std::vector<Slot>& slots, Layout layout, SlotMemory memory);

}  // namespace syncline::quant
