#include "checker/random_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "checker/small_values.h"
#include "tensor/digest.h"

namespace syncline::checker {
namespace {

using base::MutableByteSpan;
using tensor::Dtype;

constexpr std::size_t kBlock = 1024;  // random numbers that are drawn at a time

// Makes each element of bits of its own. `make` should be a lambda, which is compiled into the
// loop.
template <typename Element, typename Bits, typename Make>
void Fill(std::uint64_t seed, MutableByteSpan bytes, const Make& make) {
  constexpr std::size_t kElements = kBlock * sizeof(std::uint64_t) / sizeof(Bits);
  std::array<std::uint64_t, kBlock> numbers;
  std::array<Bits, kElements> drawn;
  std::array<Element, kElements> elements;
  std::uint64_t index = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    for (std::size_t i = 0; i < kBlock; ++i) numbers[i] = tensor::SplitMix64(seed, index + i);
    index += kBlock;
    std::memcpy(drawn.data(), numbers.data(), sizeof(numbers));
    for (std::size_t i = 0; i < kElements; ++i) elements[i] = make(drawn[i]);
    const std::size_t size = std::min(bytes.size() - at, sizeof(elements));
    std::memcpy(&bytes[at], elements.data(), size);
    at += size;
  }
}

float Unit(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits & 0xff'ffff)) * 0x1p-24F;
}

// ToBf16 and ToF16 of a Unit, in a form that becomes vectors: nothing here is negative, infinite or
// NaN, and what is subnormal in f16 is a whole number of its steps, which are of 2^-24 too.
std::uint16_t UnitInBf16(std::uint32_t bits) {
  const auto unit = std::bit_cast<std::uint32_t>(Unit(bits));
  return static_cast<std::uint16_t>((unit + 0x7fff + (unit >> 16 & 1)) >> 16);
}
std::uint16_t UnitInF16(std::uint32_t bits) {
  const auto unit = std::bit_cast<std::uint32_t>(Unit(bits));
  const std::uint32_t steps = bits & 0xff'ffff;
  const std::uint32_t normal = ((unit + 0xfff + (unit >> 13 & 1)) >> 13) - (112U << 10);
  return static_cast<std::uint16_t>(steps < 1024 ? steps : normal);
}

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
      return Fill<std::uint64_t, std::uint64_t>(
          seed, bytes, [](std::uint64_t bits) { return bits & 0x0101'0101'0101'0101; });
    case Dtype::kF8E5M2:
    case Dtype::kF8E4M3:
    case Dtype::kF8E8M0:
    case Dtype::kF8E4M3Fnuz:
    case Dtype::kF8E5M2Fnuz: {
      const std::vector<std::uint8_t> nearest = NearestOfUnit(dtype);
      return Fill<std::uint8_t, std::uint16_t>(seed, bytes,
                                               [&](std::uint16_t bits) { return nearest[bits]; });
    }
    case Dtype::kF16:
      return Fill<std::uint16_t, std::uint32_t>(seed, bytes,
                                                [](std::uint32_t bits) { return UnitInF16(bits); });
    case Dtype::kBF16:
      return Fill<std::uint16_t, std::uint32_t>(
          seed, bytes, [](std::uint32_t bits) { return UnitInBf16(bits); });
    case Dtype::kF32:
    case Dtype::kC64:
      return Fill<float, std::uint32_t>(seed, bytes, [](std::uint32_t bits) { return Unit(bits); });
    case Dtype::kF64:
      return Fill<double, std::uint32_t>(seed, bytes,
                                         [](std::uint32_t bits) { return double{Unit(bits)}; });
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
      return Fill<std::uint64_t, std::uint64_t>(seed, bytes,
                                                [](std::uint64_t bits) { return bits; });
  }
}

}  // namespace syncline::checker
