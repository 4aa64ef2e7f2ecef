#include "checker/difference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "checker/small_values.h"
#include "tensor/small_floats.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using tensor::Dtype;

// Bytes that are compared at a time: they stay in the first cache from one look to the next. Whole
// elements of every type.
constexpr std::size_t kBlockBytes = std::size_t{3} << 12;

// How a type is compared: Bits of an element, IsNan of them, and Distance, which is 0 where two are
// equal by value.

template <typename T>
struct Whole {
  using Bits = T;
  static bool IsNan(T /*bits*/) { return false; }
  static double Distance(T expected, T actual) {
    using Unsigned = std::make_unsigned_t<T>;
    const auto [less, more] = std::minmax(expected, actual);
    // Modulo 2^bits, so no difference is lost, however far apart they are.
    const auto apart =
        static_cast<Unsigned>(static_cast<Unsigned>(more) - static_cast<Unsigned>(less));
    return static_cast<double>(apart);
  }
};

double FloatDistance(double expected, double actual) {
  return expected == actual ? 0 : std::fabs(actual - expected);
}

// NaN is what lies above `infinity`, without the sign.
template <typename T, T infinity, auto value>
struct Float {
  using Bits = T;
  static bool IsNan(T bits) {
    return static_cast<T>(bits & static_cast<T>(std::numeric_limits<T>::max() >> 1)) > infinity;
  }
  static double Distance(T expected, T actual) {
    return FloatDistance(value(expected), value(actual));
  }
};

float F16Value(std::uint16_t bits) {
  static const std::vector<float> values = [] {
    std::vector<float> all(65'536);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = tensor::FromF16(static_cast<std::uint16_t>(i));
    }
    return all;
  }();
  return values[bits];
}

using F16 = Float<std::uint16_t, 0x7c00, F16Value>;
using BF16 = Float<std::uint16_t, 0x7f80, tensor::FromBf16>;
using F32 = Float<std::uint32_t, 0x7f80'0000,
                  [](std::uint32_t bits) { return std::bit_cast<float>(bits); }>;
using F64 = Float<std::uint64_t, 0x7ff0'0000'0000'0000,
                  [](std::uint64_t bits) { return std::bit_cast<double>(bits); }>;

template <Dtype dtype>
struct Byte {
  using Bits = std::uint8_t;
  static bool IsNan(std::uint8_t bits) {
    if constexpr (dtype == Dtype::kF8E4M3) return (bits & 0x7f) == 0x7f;
    if constexpr (dtype == Dtype::kF8E5M2) return (bits & 0x7f) > 0x7c;
    if constexpr (dtype == Dtype::kF8E8M0) return bits == 0xff;
    return bits == 0x80;  // FNUZ
  }
  static double Distance(std::uint8_t expected, std::uint8_t actual) {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> all;
      for (unsigned bits = 0; bits < 256; ++bits) {
        all[bits] = SmallValue(dtype, static_cast<std::uint8_t>(bits));
      }
      return all;
    }();
    return FloatDistance(values[expected], values[actual]);
  }
};

template <typename Type>
bool HoldsNan(ByteSpan bytes) {
  using Bits = typename Type::Bits;
  Bits found = 0;  // as wide as elements, so that the loop becomes one over vectors
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    const Bits nan = Type::IsNan(base::Load<Bits>(&bytes[at])) ? 1 : 0;
    found = static_cast<Bits>(found | nan);
  }
  return found != 0;
}

template <typename Type>
ErrorSums Compare(ByteSpan expected, ByteSpan actual) {
  using Bits = typename Type::Bits;
  ErrorSums sums;
  for (std::size_t begin = 0; begin < expected.size(); begin += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, expected.size() - begin);
    const ByteSpan old_block = expected.subspan(begin, size);
    const ByteSpan new_block = actual.subspan(begin, size);
    const bool same = std::memcmp(old_block.data(), new_block.data(), size) == 0;
    if (same && !HoldsNan<Type>(old_block)) continue;
    for (std::size_t at = 0; at < size; at += sizeof(Bits)) {
      const double distance =
          Type::Distance(base::Load<Bits>(&old_block[at]), base::Load<Bits>(&new_block[at]));
      if (distance != 0) sums.Add(distance, true);
    }
  }
  return sums;
}

// Elements of 4 or 6 bits, the first in the lowest bits.
ErrorSums ComparePacked(Dtype dtype, ByteSpan expected, ByteSpan actual) {
  const std::uint64_t bits = tensor::Bits(dtype);
  const auto value = [&](ByteSpan bytes, std::uint64_t i) {
    unsigned word = std::to_integer<unsigned>(bytes[i * bits / 8]);
    if (i * bits / 8 + 1 < bytes.size()) {
      word |= std::to_integer<unsigned>(bytes[i * bits / 8 + 1]) << 8;
    }
    const unsigned element = word >> (i * bits % 8) & ((1U << bits) - 1);
    return SmallValue(dtype, static_cast<std::uint8_t>(element));
  };
  ErrorSums sums;
  if (std::ranges::equal(expected, actual)) return sums;
  const std::uint64_t count = ValueCount(dtype, expected.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    const double distance = FloatDistance(value(expected, i), value(actual, i));
    if (distance != 0) sums.Add(distance, true);
  }
  return sums;
}

}  // namespace

ErrorSums CompareValues(Dtype dtype, ByteSpan expected, ByteSpan actual) {
  switch (dtype) {
    case Dtype::kF4:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
      return ComparePacked(dtype, expected, actual);
    case Dtype::kF8E5M2:
      return Compare<Byte<Dtype::kF8E5M2>>(expected, actual);
    case Dtype::kF8E4M3:
      return Compare<Byte<Dtype::kF8E4M3>>(expected, actual);
    case Dtype::kF8E8M0:
      return Compare<Byte<Dtype::kF8E8M0>>(expected, actual);
    case Dtype::kF8E4M3Fnuz:
      return Compare<Byte<Dtype::kF8E4M3Fnuz>>(expected, actual);
    case Dtype::kF8E5M2Fnuz:
      return Compare<Byte<Dtype::kF8E5M2Fnuz>>(expected, actual);
    case Dtype::kF16:
      return Compare<F16>(expected, actual);
    case Dtype::kBF16:
      return Compare<BF16>(expected, actual);
    case Dtype::kF32:
    case Dtype::kC64:
      return Compare<F32>(expected, actual);
    case Dtype::kF64:
      return Compare<F64>(expected, actual);
    case Dtype::kI8:
      return Compare<Whole<std::int8_t>>(expected, actual);
    case Dtype::kI16:
      return Compare<Whole<std::int16_t>>(expected, actual);
    case Dtype::kU16:
      return Compare<Whole<std::uint16_t>>(expected, actual);
    case Dtype::kI32:
      return Compare<Whole<std::int32_t>>(expected, actual);
    case Dtype::kU32:
      return Compare<Whole<std::uint32_t>>(expected, actual);
    case Dtype::kI64:
      return Compare<Whole<std::int64_t>>(expected, actual);
    case Dtype::kU64:
      return Compare<Whole<std::uint64_t>>(expected, actual);
    case Dtype::kBool:
    case Dtype::kU8:
      return Compare<Whole<std::uint8_t>>(expected, actual);
  }
  return Compare<Whole<std::uint8_t>>(expected, actual);
}

std::uint64_t ValueCount(Dtype dtype, std::uint64_t bytes) {
  const std::uint64_t bits = dtype == Dtype::kC64 ? 32 : tensor::Bits(dtype);
  return bytes / bits * 8 + bytes % bits * 8 / bits;
}

}  // namespace syncline::checker
