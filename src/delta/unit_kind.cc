#include "delta/unit_kind.h"

#include <algorithm>

namespace syncline::delta {

UnitKind KindOf(tensor::Dtype dtype) {
  using tensor::Dtype;
  switch (dtype) {
    case Dtype::kBF16:
      return UnitKind::kFloat16M7;
    case Dtype::kF16:
      return UnitKind::kFloat16M10;
    case Dtype::kF32:
    case Dtype::kC64:
      return UnitKind::kFloat32M23;
    case Dtype::kF8E4M3:
    case Dtype::kF8E4M3Fnuz:
      return UnitKind::kFloat8M3;
    case Dtype::kF8E5M2:
    case Dtype::kF8E5M2Fnuz:
      return UnitKind::kFloat8M2;
    default:
      break;
  }
  const std::uint32_t bits = tensor::Bits(dtype);
  if (bits >= 32) return UnitKind::kPlain32;
  return bits == 16 ? UnitKind::kPlain16 : UnitKind::kPlain8;
}

}  // namespace syncline::delta
