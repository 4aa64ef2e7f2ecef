#include "tensor/dtype.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace syncline::tensor {
namespace {

constexpr std::array<DtypeInfo, 22> kDtypes = {{
    {Dtype::kBool, "BOOL", 8},
    {Dtype::kF4, "F4", 4},
    {Dtype::kF6E2M3, "F6_E2M3", 6},
    {Dtype::kF6E3M2, "F6_E3M2", 6},
    {Dtype::kU8, "U8", 8},
    {Dtype::kI8, "I8", 8},
    {Dtype::kF8E5M2, "F8_E5M2", 8},
    {Dtype::kF8E4M3, "F8_E4M3", 8},
    {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {Dtype::kI16, "I16", 16},
    {Dtype::kU16, "U16", 16},
    {Dtype::kF16, "F16", 16},
    {Dtype::kBF16, "BF16", 16},
    {Dtype::kI32, "I32", 32},
    {Dtype::kU32, "U32", 32},
    {Dtype::kF32, "F32", 32},
    {Dtype::kC64, "C64", 64},
    {Dtype::kF64, "F64", 64},
    {Dtype::kI64, "I64", 64},
    {Dtype::kU64, "U64", 64},
}};

}  // namespace

std::span<const DtypeInfo> DtypeTable() { return kDtypes; }

std::optional<Dtype> FindDtype(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &DtypeInfo::name);
  if (found == kDtypes.end()) return std::nullopt;
  return found->dtype;
}

std::string_view Name(Dtype dtype) { return kDtypes.at(static_cast<std::size_t>(dtype)).name; }

std::uint32_t Bits(Dtype dtype) { return kDtypes.at(static_cast<std::size_t>(dtype)).bits; }

std::uint32_t UnitBytes(Dtype dtype) { return Bits(dtype) >= 16 ? 2 : 1; }

std::uint32_t UnitsPerElement(Dtype dtype) { return std::max(Bits(dtype) / 16, 1U); }

std::uint32_t DigestUnitBytes(Dtype dtype) { return Bits(dtype) >= 32 ? 4 : UnitBytes(dtype); }

base::Result<std::uint64_t> ElementCount(Shape shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return base::Fail(base::Code::kCorrupt,
                        fmt::format("shape {} overflows 64 bits", ShapeText(shape)));
    }
  }
  return count;
}

base::Result<std::uint64_t> ByteCount(Dtype dtype, Shape shape) {
  SYNCLINE_ASSIGN(const std::uint64_t count, ElementCount(shape));
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(count, Bits(dtype), &bits)) {
    return base::Fail(base::Code::kCorrupt, fmt::format("shape {} of {} overflows 64 bits",
                                                        ShapeText(shape), Name(dtype)));
  }
  if (bits % 8 != 0) {
    return base::Fail(base::Code::kCorrupt, fmt::format("shape {} of {} does not end on a byte",
                                                        ShapeText(shape), Name(dtype)));
  }
  return bits / 8;
}

std::string ShapeText(Shape shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace syncline::tensor
