#include "delta/compare.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "delta/encoding.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Load;
using tensor::Dtype;

// How the bits of a floating type are read. Magnitudes (all bits but the sign) rise with the value.
struct Layout {
  std::uint64_t sign;         // the bit; 0: there is none
  std::uint64_t largest;      // magnitude that is a number (or infinity); above it stands NaN
  std::uint64_t nan_pattern;  // a single NaN that has the magnitude of a number; 0: there is none

  bool IsNan(std::uint64_t bits) const {
    return (bits & ~sign) > largest || (nan_pattern != 0 && bits == nan_pattern);
  }
};

// A sign bit of 0 with `largest` 0 stands for a type without steps.
constexpr Layout LayoutOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {std::uint64_t{1} << 63, 0x7FF0000000000000, 0};
    case Dtype::kF32:
      return {0x80000000, 0x7F800000, 0};
    case Dtype::kF16:
      return {0x8000, 0x7C00, 0};
    case Dtype::kBF16:
      return {0x8000, 0x7F80, 0};
    case Dtype::kF8E5M2:
      return {0x80, 0x7C, 0};
    case Dtype::kF8E4M3:  // no infinity, and one NaN of each sign
      return {0x80, 0x7E, 0};
    case Dtype::kF8E4M3Fnuz:  // what would be the negative zero is the only NaN
    case Dtype::kF8E5M2Fnuz:
      return {0x80, 0x7F, 0x80};
    case Dtype::kF8E8M0:  // powers of two, no sign
      return {0, 0xFE, 0};
    default:
      return {0, 0, 0};
  }
}

void Add(std::uint64_t a, std::uint64_t b, const Layout& layout, StepHistogram& histogram) {
  if (layout.IsNan(a) || layout.IsNan(b)) {
    ++histogram.nan;
  } else if (((a ^ b) & layout.sign) != 0) {
    ++histogram.sign_changes;
  } else {
    const std::uint64_t step = std::max(a, b) - std::min(a, b);
    ++histogram.steps[static_cast<std::size_t>(std::bit_width(step - 1))];
  }
}

template <typename Word>
void AddBlock(ByteSpan old_bytes, ByteSpan new_bytes, const Layout& layout,
              const std::vector<std::uint64_t>& mask, std::size_t words, std::size_t unit_bytes,
              StepHistogram& histogram) {
  std::size_t last = ~std::size_t{0};
  tensor::ForEachSet(mask.data(), words, [&](std::size_t unit) {
    const std::size_t element = unit * unit_bytes / sizeof(Word);
    if (element == last) return;
    last = element;
    ++histogram.changed;
    if (layout.largest == 0) return;
    Add(Load<Word>(&old_bytes[element * sizeof(Word)]),
        Load<Word>(&new_bytes[element * sizeof(Word)]), layout, histogram);
  });
}

}  // namespace

StepHistogram& StepHistogram::operator+=(const StepHistogram& other) {
  elements += other.elements;
  changed += other.changed;
  sign_changes += other.sign_changes;
  nan += other.nan;
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] += other.steps[i];
  return *this;
}

bool HasSteps(Dtype dtype) { return LayoutOf(dtype).largest != 0; }

void AddSteps(ByteSpan old_bytes, ByteSpan new_bytes, Dtype dtype, StepHistogram& histogram) {
  const Layout layout = LayoutOf(dtype);
  const std::size_t unit = UnitBytes(dtype);
  const std::size_t width = std::max(Bits(dtype) / 8, 1U);
  histogram.elements += old_bytes.size() / width;
  std::vector<std::byte> image(kBlockBytes);
  std::vector<std::uint64_t> mask(tensor::MaskWords(kBlockBytes, 1));
  for (std::size_t at = 0; at < old_bytes.size(); at += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, old_bytes.size() - at);
    const ByteSpan a = old_bytes.subspan(at, size);
    const ByteSpan b = new_bytes.subspan(at, size);
    tensor::XorWithMask(a.data(), b.data(), size, unit, image.data(), mask.data());
    const std::size_t words = tensor::MaskWords(size, unit);
    switch (width) {
      case 1:
        AddBlock<std::uint8_t>(a, b, layout, mask, words, unit, histogram);
        break;
      case 2:
        AddBlock<std::uint16_t>(a, b, layout, mask, words, unit, histogram);
        break;
      case 4:
        AddBlock<std::uint32_t>(a, b, layout, mask, words, unit, histogram);
        break;
      default:
        AddBlock<std::uint64_t>(a, b, layout, mask, words, unit, histogram);
    }
  }
}

}  // namespace syncline::delta
