// How the compact encoding sees the elements of a tensor (docs/format.md, "The encoding compact"):
// as units of 1, 2 or 4 bytes with an order, and of floats with an exponent.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"

namespace syncline::delta {

enum class UnitKind : std::uint8_t {
  kPlain8,
  kPlain16,
  kPlain32,
  kFloat8M2,  // with two bits of mantissa
  kFloat8M3,
  kFloat16M7,  // BF16
  kFloat16M10,
  kFloat32M23,
};

UnitKind KindOf(tensor::Dtype dtype);

template <UnitKind kind>
struct UnitTraits {
  using Unit = std::conditional_t<
      kind == UnitKind::kPlain8 || kind == UnitKind::kFloat8M2 || kind == UnitKind::kFloat8M3,
      std::uint8_t,
      std::conditional_t<kind == UnitKind::kPlain32 || kind == UnitKind::kFloat32M23, std::uint32_t,
                         std::uint16_t>>;
  static constexpr bool kFloat = kind >= UnitKind::kFloat8M2;
  static constexpr int kMantissaBits = kind == UnitKind::kFloat8M2     ? 2
                                       : kind == UnitKind::kFloat8M3   ? 3
                                       : kind == UnitKind::kFloat16M7  ? 7
                                       : kind == UnitKind::kFloat16M10 ? 10
                                                                       : 23;
  static constexpr Unit kSign = static_cast<Unit>(Unit{1} << (8 * sizeof(Unit) - 1));
  static constexpr Unit kMagnitude = static_cast<Unit>(kSign - 1);

  // From a unit to its key, in whose order numbers ascend, and back.
  static constexpr Unit Key(Unit unit) {
    return kFloat && (unit & kSign) != 0 ? static_cast<Unit>(unit ^ kMagnitude) : unit;
  }
  // The exponent that a unit's class goes by; mantissa 0 counts with the exponent below.
  static constexpr std::uint32_t Exponent(Unit unit) {
    const auto magnitude = static_cast<std::uint32_t>(unit & kMagnitude);
    return (magnitude - (magnitude != 0 ? 1 : 0)) >> kMantissaBits;
  }
};

// Calls work.template operator()<kind>().
template <typename Work>
constexpr auto WithKind(UnitKind kind, const Work& work) {
  switch (kind) {
    case UnitKind::kPlain8:
      return work.template operator()<UnitKind::kPlain8>();
    case UnitKind::kPlain16:
      return work.template operator()<UnitKind::kPlain16>();
    case UnitKind::kPlain32:
      return work.template operator()<UnitKind::kPlain32>();
    case UnitKind::kFloat8M2:
      return work.template operator()<UnitKind::kFloat8M2>();
    case UnitKind::kFloat8M3:
      return work.template operator()<UnitKind::kFloat8M3>();
    case UnitKind::kFloat16M7:
      return work.template operator()<UnitKind::kFloat16M7>();
    case UnitKind::kFloat16M10:
      return work.template operator()<UnitKind::kFloat16M10>();
    case UnitKind::kFloat32M23:
      break;
  }
  return work.template operator()<UnitKind::kFloat32M23>();
}

constexpr std::size_t UnitBytes(UnitKind kind) {
  return WithKind(kind, []<UnitKind k>() { return sizeof(typename UnitTraits<k>::Unit); });
}
constexpr bool IsFloat(UnitKind kind) { return kind >= UnitKind::kFloat8M2; }

}  // namespace syncline::delta
