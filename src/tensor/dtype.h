// The element types of the safetensors format: names, sizes in bits, and the order in which its
// writers sort them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"

namespace syncline::tensor {

// Order of the table, by rising size; the values are not stored anywhere.
enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;  // as in a safetensors header
  std::uint8_t bits;      // of one element
};

std::span<const DtypeInfo> DtypeTable();
std::optional<Dtype> FindDtype(std::string_view name);
std::string_view Name(Dtype dtype);
std::uint32_t Bits(Dtype dtype);

// Changes are looked for, recorded and written in units: two bytes where elements have two or more,
// else one. Divides the byte size of every tensor of that type.
std::uint32_t UnitBytes(Dtype dtype);

// Units of one element: 1, 2 or 4. Elements of 4 and 6 bits share a unit, and where elements are
// counted each unit counts as one.
std::uint32_t UnitsPerElement(Dtype dtype);

// The additive digest (digest.h) sees a tensor as units of 4 bytes where elements have four or
// more, of 2 where they have two, else of 1. Divides the byte size of every tensor of that type.
std::uint32_t DigestUnitBytes(Dtype dtype);

using Shape = std::span<const std::uint64_t>;

// Number of elements; 1 for the empty shape. kCorrupt if the product does not fit 64 bits.
base::Result<std::uint64_t> ElementCount(Shape shape);

// Bytes of a packed tensor. kCorrupt if it does not fit 64 bits or does not end on a byte (an odd
// number of F4 elements).
base::Result<std::uint64_t> ByteCount(Dtype dtype, Shape shape);

// "[49152, 576]"
std::string ShapeText(Shape shape);

}  // namespace syncline::tensor
