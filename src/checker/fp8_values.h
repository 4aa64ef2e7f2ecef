// The values of block-wise fp8 weights, and how far they may move: SGLang's tolerance of one unit
// in the last place of the quantised value, on each side of a comparison.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/pool.h"
#include "checker/difference.h"
#include "checker/entries.h"

namespace syncline::checker {

// Slots of all parameters of a runner, in the runtime layout, by number in the plan.
using AllSlots = std::span<const base::ByteSpan>;

// The scales of one unit, in the runtime layout: F32 [block rows, block columns], where each of the
// matrices that are stacked begins a block row of its own, or I32, four exponents of powers of two
// in an element, [ceil(block columns / 4), rows rounded up to 4]. Thread-safe.
class BlockScales {
 public:
  static constexpr std::uint64_t kBlock = 128;

  // `entry` has a unit and must outlive it, as must `slots`.
  BlockScales(const Entry& entry, AllSlots slots);

  // Of each block of a row; `into` has one element for each.
  void OfRow(std::uint64_t expert, std::uint64_t row, std::span<float> into) const;
  std::uint64_t blocks() const { return blocks_; }

 private:
  std::uint64_t BlockRow(std::uint64_t row) const;

  const quant::Matrix& matrix_;
  base::ByteSpan scales_;
  bool packed_ = false;
  std::uint64_t blocks_ = 0;      // of a row
  std::uint64_t block_rows_ = 0;  // of one matrix
};

// The bytes of a piece of an entry with a unit: its values in bf16. Valid until the next use of
// `buffer`.
base::ByteSpan ValuesOf(const Entry& entry, const Piece& piece, AllSlots slots,
                        base::Buffer& buffer);

// |actual - expected| of the values of a piece, in fp32. Exceeding is what lies beyond
//
//   Ulp(q expected) · scale expected + Ulp(q actual) · scale actual
//
// Infinities of one sign are equal, NaN is equal to nothing. Equal bytes are not dequantised.
ErrorSums CompareFp8(const Entry& entry, const Piece& piece, AllSlots expected, AllSlots actual,
                     base::Pool<base::Buffer>& buffers);

}  // namespace syncline::checker
