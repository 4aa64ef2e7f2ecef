#include "quant/fp8_block.h"

#include <algorithm>
#include <array>
#include <bit>

#include "quant/fp8_requantise.h"
#include "quant/fp8_rows.h"
#include "quant/matrix_check.h"

namespace syncline::quant {
namespace {

using tensor::Dtype;

constexpr std::uint64_t kRowAlignment = 4;  // of packed scales

constexpr std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// Sizes of a unit.
struct Sizes {
  explicit Sizes(const Matrix& matrix)
      : rows(matrix.rows()), columns(matrix.columns), blocks(CeilDiv(columns, kFp8Block)) {
    for (const std::uint64_t part : matrix.part_rows) scale_rows += CeilDiv(part, kFp8Block);
    words = CeilDiv(blocks, kExponentsInWord);
    column_bytes = CeilDiv(rows, kRowAlignment) * kRowAlignment * sizeof(std::uint32_t);
  }
  std::uint64_t scales() const { return scale_rows * blocks; }         // of one matrix
  std::uint64_t packed_bytes() const { return words * column_bytes; }  // of one matrix

  std::uint64_t rows;
  std::uint64_t columns;
  std::uint64_t blocks;          // along the columns
  std::uint64_t scale_rows = 0;  // blocks along the rows
  std::uint64_t words;           // packed scales of a row
  std::uint64_t column_bytes;    // of packed scales
};

// Rows [first, last) of a matrix that lie in the blocks of one scale row.
struct Strip {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

// By scale row.
std::vector<Strip> StripsOf(const Matrix& matrix) {
  std::vector<Strip> strips;
  std::uint64_t begin = 0;
  for (const std::uint64_t part : matrix.part_rows) {
    for (std::uint64_t row = 0; row < part; row += kFp8Block) {
      strips.push_back({begin + row, begin + std::min(part, row + kFp8Block)});
    }
    begin += part;
  }
  return strips;
}

std::vector<std::uint64_t> ShapeOf(const Matrix& matrix, std::uint64_t rows,
                                   std::uint64_t columns) {
  std::vector<std::uint64_t> shape = {rows, columns};
  if (matrix.experts != 0) shape.insert(shape.begin(), matrix.experts);
  return shape;
}

float PowerOfTwo(std::uint8_t exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

// Both layouts of scales of one matrix.
float LoadScale(const Sizes& sizes, const std::byte* scales, std::uint64_t scale_row,
                std::uint64_t block) {
  return base::Load<float>(scales + (scale_row * sizes.blocks + block) * sizeof(float));
}

std::uint64_t PackedAt(const Sizes& sizes, std::uint64_t row, std::uint64_t block) {
  return block / kExponentsInWord * sizes.column_bytes + row * sizeof(std::uint32_t) +
         block % kExponentsInWord;
}

float PackedScale(const Sizes& sizes, const std::byte* packed, std::uint64_t row,
                  std::uint64_t block) {
  return PowerOfTwo(std::to_integer<std::uint8_t>(packed[PackedAt(sizes, row, block)]));
}

// Reads rows with the scales that scale_at(row, block) gives. Neighbours mostly have the same ones.
template <typename ScaleAt>
void DequantiseRows(const Sizes& sizes, const std::byte* weight, std::uint64_t first,
                    std::uint64_t last, std::uint16_t* bf16, const ScaleAt& scale_at) {
  constexpr std::uint64_t kChunk = 64;  // blocks
  std::array<float, kChunk> scales;
  for (std::uint64_t block = 0; block < sizes.blocks; block += kChunk) {
    const std::uint64_t count = std::min(kChunk, sizes.blocks - block);
    const std::uint64_t column = block * kFp8Block;
    const auto has_these = [&](std::uint64_t row) {
      for (std::uint64_t i = 0; i < count; ++i) {
        if (std::bit_cast<std::uint32_t>(scale_at(row, block + i)) !=
            std::bit_cast<std::uint32_t>(scales[i])) {
          return false;
        }
      }
      return true;
    };
    for (std::uint64_t row = first; row < last;) {
      for (std::uint64_t i = 0; i < count; ++i) scales[i] = scale_at(row, block + i);
      std::uint64_t end = row + 1;
      while (end < last && has_these(end)) ++end;
      const auto* q = reinterpret_cast<const std::uint8_t*>(weight + row * sizes.columns + column);
      DequantiseFp8Rows(q, end - row, sizes.columns, scales.data(),
                        std::min(kChunk * kFp8Block, sizes.columns - column),
                        bf16 + (row - first) * sizes.columns + column, sizes.columns);
      row = end;
    }
  }
}

class PlainScales : public Scheme {
 public:
  std::string_view name() const override { return "fp8-block"; }
  base::Status Check(const Matrix& matrix) const override { return CheckMatrix(matrix); }
  bool Repacks() const override { return false; }
  bool Exact() const override { return true; }
  void Process(const Matrix&, MutableSlotViews, base::ThreadPool&) const override {}
  void Restore(const Matrix&, MutableSlotViews, base::ThreadPool&) const override {}
  std::uint64_t RowStep() const override { return 1; }

  std::vector<Slot> Slots(const Matrix& matrix) const override {
    const Sizes sizes(matrix);
    std::vector<Slot> slots(2);
    slots[0].name = "weight";
    slots[0].load = {"", Dtype::kF8E4M3, ShapeOf(matrix, sizes.rows, sizes.columns)};
    slots[1].name = "weight_scale_inv";
    slots[1].load = {"", Dtype::kF32, ShapeOf(matrix, sizes.scale_rows, sizes.blocks)};
    slots[1].block_rows = slots[1].block_columns = kFp8Block;
    for (Slot& slot : slots) {
      slot.runtime = slot.load;
      slot.runtime_bytes = slot.load.bytes();
    }
    return slots;
  }

  void Dequantise(const Matrix& matrix, SlotViews slots, Layout, std::uint64_t expert,
                  std::uint64_t first, std::uint64_t last, std::uint16_t* bf16) const override {
    const Sizes sizes(matrix);
    const std::byte* weight = slots[0].data() + expert * sizes.rows * sizes.columns;
    const std::byte* scales = slots[1].data() + expert * sizes.scales() * sizeof(float);
    std::uint64_t begin = 0;
    std::uint64_t scale_row = 0;
    for (const std::uint64_t part : matrix.part_rows) {
      const std::uint64_t from = std::max(first, begin);
      const std::uint64_t to = std::min(last, begin + part);
      if (from < to) {
        DequantiseRows(sizes, weight, from, to, bf16 + (from - first) * sizes.columns,
                       [&](std::uint64_t row, std::uint64_t block) {
                         return LoadScale(sizes, scales, scale_row + (row - begin) / kFp8Block,
                                          block);
                       });
      }
      begin += part;
      scale_row += CeilDiv(part, kFp8Block);
    }
  }
};

class PackedScales final : public PlainScales {
 public:
  std::string_view name() const override { return "fp8-block-ue8m0"; }
  bool Repacks() const override { return true; }
  bool Exact() const override { return false; }

  std::vector<Slot> Slots(const Matrix& matrix) const override {
    const Sizes sizes(matrix);
    std::vector<Slot> slots = PlainScales::Slots(matrix);
    slots[1].runtime = {"", Dtype::kI32, ShapeOf(matrix, sizes.rows, sizes.words)};
    slots[1].runtime_bytes = matrix.count() * sizes.packed_bytes();
    return slots;
  }

  // The scales are few (a block has 128 rows), so they are copied out of their slot, which the
  // packed ones then take. Tasks are the blocks of one strip and one word: they write words of
  // their own.
  void Process(const Matrix& matrix, MutableSlotViews slots,
               base::ThreadPool& pool) const override {
    const Sizes sizes(matrix);
    const std::vector<Strip> strips = StripsOf(matrix);
    const base::MutableByteSpan packed = slots[1];
    const std::uint64_t load_bytes = matrix.count() * sizes.scales() * sizeof(float);
    const std::vector<std::byte> scales(packed.begin(),
                                        packed.begin() + static_cast<std::ptrdiff_t>(load_bytes));
    std::ranges::fill(packed, std::byte{0});
    const std::uint64_t in_matrix = strips.size() * sizes.words;
    (void)pool.ParallelFor(matrix.count() * in_matrix, [&](std::size_t task) -> base::Status {
      const std::uint64_t expert = task / in_matrix;
      const std::uint64_t scale_row = task % in_matrix / sizes.words;
      PackWord(sizes, strips[scale_row], task % sizes.words,
               scales.data() + (expert * sizes.scales() + scale_row * sizes.blocks) * sizeof(float),
               slots[0].data() + expert * sizes.rows * sizes.columns,
               packed.data() + expert * sizes.packed_bytes());
      return {};
    });
  }

  void Restore(const Matrix& matrix, MutableSlotViews slots, base::ThreadPool&) const override {
    const Sizes sizes(matrix);
    const std::vector<Strip> strips = StripsOf(matrix);
    std::vector<float> scales;
    scales.reserve(matrix.count() * sizes.scales());
    for (std::uint64_t expert = 0; expert < matrix.count(); ++expert) {
      const std::byte* packed = slots[1].data() + expert * sizes.packed_bytes();
      for (const Strip& strip : strips) {
        for (std::uint64_t block = 0; block < sizes.blocks; ++block) {
          scales.push_back(PackedScale(sizes, packed, strip.first, block));
        }
      }
    }
    std::ranges::fill(slots[1], std::byte{0});
    std::ranges::copy(std::as_bytes(std::span(scales)), slots[1].begin());
  }

  void Dequantise(const Matrix& matrix, SlotViews slots, Layout layout, std::uint64_t expert,
                  std::uint64_t first, std::uint64_t last, std::uint16_t* bf16) const override {
    if (layout == Layout::kLoad) {
      PlainScales::Dequantise(matrix, slots, layout, expert, first, last, bf16);
      return;
    }
    const Sizes sizes(matrix);
    const std::byte* packed = slots[1].data() + expert * sizes.packed_bytes();
    DequantiseRows(sizes, slots[0].data() + expert * sizes.rows * sizes.columns, first, last, bf16,
                   [&](std::uint64_t row, std::uint64_t block) {
                     return PackedScale(sizes, packed, row, block);
                   });
  }

 private:
  // `scales` are those of the strip, `weight` and `packed` of the matrix.
  static void PackWord(const Sizes& sizes, const Strip& strip, std::uint64_t word,
                       const std::byte* scales, std::byte* weight, std::byte* packed) {
    const std::uint64_t first = word * kExponentsInWord;
    const std::uint64_t count = std::min(kExponentsInWord, sizes.blocks - first);
    const std::uint64_t column = first * kFp8Block;
    std::array<float, kExponentsInWord> own;
    for (std::uint64_t i = 0; i < count; ++i) own[i] = LoadScale(sizes, scales, 0, first + i);
    const std::uint32_t exponents =
        Requantise({.weight = weight + strip.first * sizes.columns + column,
                    .rows = strip.last - strip.first,
                    .columns = std::min(count * kFp8Block, sizes.columns - column),
                    .stride = sizes.columns,
                    .scales = std::span(own).first(count)});
    for (std::uint64_t row = strip.first; row < strip.last; ++row) {
      base::Store(packed + PackedAt(sizes, row, first), exponents);
    }
  }
};

}  // namespace

std::shared_ptr<const Scheme> Fp8Block() { return std::make_shared<PlainScales>(); }
std::shared_ptr<const Scheme> Fp8BlockUe8m0() { return std::make_shared<PackedScales>(); }

}  // namespace syncline::quant
