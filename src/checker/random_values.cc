#include "checker/random_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "checker/small_values.h"
#include "tensor/digest.h"
#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using base::MutableByteSpan;
using tensor::Dtype;

constexpr std::size_t kBlock = 1024;  // random numbers that are drawn at a time
using Block = std::array<std::uint64_t, kBlock>;

// Every random bit decides at most one element: `per_number` elements take the bits of one number.
template <typename Element, std::size_t per_number, typename Make>
void Fill(std::uint64_t seed, MutableByteSpan bytes, const Make& make) {
  constexpr std::size_t kBits = 64 / per_number;
  constexpr std::size_t kElements = kBlock * per_number;
  std::vector<Element> elements(kElements);
  Block numbers;
  std::uint64_t index = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    for (std::uint64_t& number : numbers) number = tensor::SplitMix64(seed, index++);
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::uint64_t bits = numbers[i / per_number] >> (i % per_number * kBits);
      elements[i] = make(bits);
    }
    const std::size_t size = std::min(bytes.size() - at, kElements * sizeof(Element));
    std::memcpy(&bytes[at], elements.data(), size);
    at += size;
  }
}

float Unit(std::uint64_t bits) { return static_cast<float>(bits & 0xff'ffff) * 0x1p-24F; }

// The bits of the nearest value of a type of 8 bits, for each i / 65536; the even one of two that
// are as near.
std::vector<std::uint8_t> NearestOfUnit(Dtype dtype) {
  std::vector<std::pair<float, std::uint8_t>> values;  // not negative; rising
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float value = SmallValue(dtype, static_cast<std::uint8_t>(bits));
    if (std::isfinite(value) && !std::signbit(value)) {
      values.emplace_back(value, static_cast<std::uint8_t>(bits));
    }
  }
  std::ranges::sort(values);
  std::vector<std::uint8_t> nearest(65'536);
  std::size_t below = 0;
  for (std::size_t i = 0; i < nearest.size(); ++i) {
    const double unit = static_cast<double>(i) / 65'536;
    while (values[below + 1].first <= unit) ++below;
    const double to_lower = unit - values[below].first;
    const double to_upper = values[below + 1].first - unit;
    const bool upper =
        to_upper < to_lower || (to_upper == to_lower && values[below].second % 2 != 0);
    nearest[i] = values[below + (upper ? 1 : 0)].second;
  }
  return nearest;
}

}  // namespace

void FillRandom(Dtype dtype, std::uint64_t seed, MutableByteSpan bytes) {
  switch (dtype) {
    case Dtype::kBool:
      return Fill<std::uint64_t, 1>(
          seed, bytes, [](std::uint64_t bits) { return bits & 0x0101'0101'0101'0101; });
    case Dtype::kF8E5M2:
    case Dtype::kF8E4M3:
    case Dtype::kF8E8M0:
    case Dtype::kF8E4M3Fnuz:
    case Dtype::kF8E5M2Fnuz: {
      const std::vector<std::uint8_t> nearest = NearestOfUnit(dtype);
      return Fill<std::uint8_t, 4>(seed, bytes,
                                   [&](std::uint64_t bits) { return nearest[bits & 0xffff]; });
    }
    case Dtype::kF16:
      return Fill<std::uint16_t, 2>(seed, bytes,
                                    [](std::uint64_t bits) { return tensor::ToF16(Unit(bits)); });
    case Dtype::kBF16:
      return Fill<std::uint16_t, 2>(seed, bytes,
                                    [](std::uint64_t bits) { return tensor::ToBf16(Unit(bits)); });
    case Dtype::kF32:
    case Dtype::kC64:
      return Fill<float, 2>(seed, bytes, Unit);
    case Dtype::kF64:
      return Fill<double, 1>(seed, bytes, [](std::uint64_t bits) { return double{Unit(bits)}; });
    case Dtype::kF4:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kU32:
    case Dtype::kI64:
    case Dtype::kU64:
      return Fill<std::uint64_t, 1>(seed, bytes, [](std::uint64_t bits) { return bits; });
  }
}

}  // namespace syncline::checker
