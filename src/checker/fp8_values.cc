#include "checker/fp8_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using tensor::Dtype;

std::uint64_t CeilDivide(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// 2^(exponent - 127), a subnormal number for 0; NaN for 255.
float PowerOfTwo(std::uint32_t exponent) {
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(exponent == 0 ? 1U << 22 : exponent << 23);
}

std::vector<ByteSpan> SlotsOf(const Entry& entry, AllSlots slots) {
  std::vector<ByteSpan> own;
  own.reserve(entry.unit->parameters.size());
  for (const std::size_t parameter : entry.unit->parameters) own.push_back(slots[parameter]);
  return own;
}

// By the bits of an element. NaN for those that are not finite.
std::array<float, 256> UlpTable(Dtype dtype) {
  std::array<float, 256> ulps;
  for (unsigned bits = 0; bits < 256; ++bits) {
    ulps[bits] = tensor::Ulp(dtype, static_cast<std::uint8_t>(bits));
  }
  return ulps;
}

// The quantised elements of rows of one matrix. They lie row-major in either layout.
ByteSpan Quantised(const Entry& entry, const RowRange& rows, AllSlots slots) {
  const quant::Matrix& matrix = entry.unit->matrix;
  const std::uint64_t begin = (rows.expert * matrix.rows() + rows.first) * matrix.columns;
  return slots[entry.weight()].subspan(begin, (rows.last - rows.first) * matrix.columns);
}

// One side of a comparison.
struct Side {
  AllSlots slots;
  BlockScales scales;
  const std::byte* values = nullptr;  // of the piece, in bf16
};

// Do the same finite numbers, or infinities, come of equal bytes on both sides? False says nothing.
bool AreSurelyEqual(const Entry& entry, const RowRange& rows, const Side& expected,
                    const Side& actual) {
  const ByteSpan old_bits = Quantised(entry, rows, expected.slots);
  const ByteSpan new_bits = Quantised(entry, rows, actual.slots);
  if (std::memcmp(old_bits.data(), new_bits.data(), old_bits.size()) != 0) return false;
  if (CompareValues(entry.dtype, old_bits, new_bits).unequal != 0) return false;  // NaN
  std::vector<float> old_scales(expected.scales.blocks());
  std::vector<float> new_scales(actual.scales.blocks());
  for (std::uint64_t row = rows.first; row < rows.last; ++row) {
    expected.scales.OfRow(rows.expert, row, old_scales);
    actual.scales.OfRow(rows.expert, row, new_scales);
    const auto is_finite = [](float scale) { return std::isfinite(scale); };
    if (old_scales != new_scales || !std::ranges::all_of(old_scales, is_finite)) return false;
  }
  return true;
}

float ValueAt(const Side& side, std::uint64_t i) {
  return tensor::FromBf16(base::Load<std::uint16_t>(side.values + 2 * i));
}

// `first_value`: where the values of the rows begin among those of the piece.
void CompareRows(const Entry& entry, const RowRange& rows, std::uint64_t first_value,
                 const std::array<float, 256>& ulps, const Side& expected, const Side& actual,
                 ErrorSums& sums) {
  const std::uint64_t columns = entry.unit->matrix.columns;
  const ByteSpan old_bits = Quantised(entry, rows, expected.slots);
  const ByteSpan new_bits = Quantised(entry, rows, actual.slots);
  std::vector<float> old_scales(expected.scales.blocks());
  std::vector<float> new_scales(actual.scales.blocks());
  for (std::uint64_t row = rows.first; row < rows.last; ++row) {
    expected.scales.OfRow(rows.expert, row, old_scales);
    actual.scales.OfRow(rows.expert, row, new_scales);
    const std::uint64_t begin = (row - rows.first) * columns;
    for (std::uint64_t column = 0; column < columns; ++column) {
      const std::uint64_t i = begin + column;
      const float old_value = ValueAt(expected, first_value + i);
      const float new_value = ValueAt(actual, first_value + i);
      if (old_value == new_value) continue;
      const std::uint64_t block = column / BlockScales::kBlock;
      const float tolerance = ulps[std::to_integer<unsigned>(old_bits[i])] * old_scales[block] +
                              ulps[std::to_integer<unsigned>(new_bits[i])] * new_scales[block];
      const float difference = std::fabs(new_value - old_value);
      sums.Add(difference, !(difference <= tolerance));
    }
  }
}

}  // namespace

BlockScales::BlockScales(const Entry& entry, AllSlots slots)
    : matrix_(entry.unit->matrix), scales_(slots[entry.scale()]) {
  const std::vector<quant::Slot> kinds = entry.unit->scheme->Slots(matrix_);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (entry.unit->parameters[i] != entry.scale()) continue;
    packed_ = kinds[i].runtime.dtype == Dtype::kI32;
    scales_ = scales_.first(kinds[i].runtime_bytes);
  }
  blocks_ = CeilDivide(matrix_.columns, kBlock);
  for (const std::uint64_t rows : matrix_.part_rows) block_rows_ += CeilDivide(rows, kBlock);
}

std::uint64_t BlockScales::BlockRow(std::uint64_t row) const {
  std::uint64_t before = 0;
  for (const std::uint64_t rows : matrix_.part_rows) {
    if (row < rows) return before + row / kBlock;
    row -= rows;
    before += CeilDivide(rows, kBlock);
  }
  return before;
}

void BlockScales::OfRow(std::uint64_t expert, std::uint64_t row, std::span<float> into) const {
  if (!packed_) {
    const std::uint64_t first = (expert * block_rows_ + BlockRow(row)) * blocks_;
    for (std::uint64_t block = 0; block < blocks_; ++block) {
      into[block] = base::Load<float>(&scales_[4 * (first + block)]);
    }
    return;
  }
  const std::uint64_t stride = CeilDivide(matrix_.rows(), 4) * 4;
  const std::uint64_t words = CeilDivide(blocks_, 4);
  for (std::uint64_t block = 0; block < blocks_; ++block) {
    const std::uint64_t word = (expert * words + block / 4) * stride + row;
    into[block] = PowerOfTwo(std::to_integer<std::uint32_t>(scales_[4 * word + block % 4]));
  }
}

ByteSpan ValuesOf(const Entry& entry, const Piece& piece, AllSlots slots, base::Buffer& buffer) {
  const base::MutableByteSpan bytes = buffer.Get(piece.end - piece.begin);
  const std::vector<ByteSpan> own = SlotsOf(entry, slots);
  const quant::Matrix& matrix = entry.unit->matrix;
  auto* into = reinterpret_cast<std::uint16_t*>(bytes.data());
  for (const RowRange& rows : piece.rows) {
    entry.unit->scheme->Dequantise(matrix, own, quant::Layout::kRuntime, rows.expert, rows.first,
                                   rows.last, into);
    into += (rows.last - rows.first) * matrix.columns;
  }
  return bytes;
}

ErrorSums CompareFp8(const Entry& entry, const Piece& piece, AllSlots expected, AllSlots actual,
                     base::Pool<base::Buffer>& buffers) {
  Side old_side = {.slots = expected, .scales = BlockScales(entry, expected)};
  Side new_side = {.slots = actual, .scales = BlockScales(entry, actual)};
  ErrorSums sums;
  if (std::ranges::all_of(piece.rows, [&](const RowRange& rows) {
        return AreSurelyEqual(entry, rows, old_side, new_side);
      })) {
    return sums;
  }
  const base::Pool<base::Buffer>::Lease old_buffer(buffers);
  const base::Pool<base::Buffer>::Lease new_buffer(buffers);
  old_side.values = ValuesOf(entry, piece, expected, *old_buffer).data();
  new_side.values = ValuesOf(entry, piece, actual, *new_buffer).data();
  const std::array<float, 256> ulps = UlpTable(entry.dtype);
  std::uint64_t first_value = 0;
  for (const RowRange& rows : piece.rows) {
    CompareRows(entry, rows, first_value, ulps, old_side, new_side, sums);
    first_value += (rows.last - rows.first) * entry.unit->matrix.columns;
  }
  return sums;
}

}  // namespace syncline::checker
