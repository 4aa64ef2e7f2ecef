#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <array>

#include "base/result_matchers.h"

namespace syncline::tensor {
namespace {

using base::Code;

TEST(DtypeTest, TableIsConsistent) {
  std::size_t index = 0;
  for (const DtypeInfo& info : DtypeTable()) {
    EXPECT_EQ(static_cast<std::size_t>(info.dtype), index++);
    EXPECT_EQ(FindDtype(info.name), info.dtype);
    EXPECT_EQ(Name(info.dtype), info.name);
    const std::array<std::uint64_t, 2> shape = {3, 8};
    EXPECT_EQ(ByteCount(info.dtype, shape).value(), 3U * info.bits);
    EXPECT_EQ(ByteCount(info.dtype, shape).value() % UnitBytes(info.dtype), 0U);
    EXPECT_EQ(UnitBytes(info.dtype) * UnitsPerElement(info.dtype), std::max(info.bits / 8, 1));
  }
  EXPECT_EQ(index, 22U);
  EXPECT_EQ(FindDtype("F12"), std::nullopt);
}

TEST(DtypeTest, ScalarEmptyAndOverflowingShapes) {
  EXPECT_EQ(ByteCount(Dtype::kBF16, {}).value(), 2U);
  EXPECT_EQ(ByteCount(Dtype::kF32, std::array<std::uint64_t, 2>{2, 0}).value(), 0U);
  EXPECT_ERROR(ByteCount(Dtype::kU8, std::array<std::uint64_t, 2>{1ULL << 32, 1ULL << 32}),
               Code::kCorrupt, "[4294967296, 4294967296] overflows");
  EXPECT_ERROR(ByteCount(Dtype::kF64, std::array<std::uint64_t, 1>{1ULL << 60}), Code::kCorrupt,
               "overflows");
  EXPECT_ERROR(ByteCount(Dtype::kF4, std::array<std::uint64_t, 2>{1, 3}), Code::kCorrupt,
               "does not end on a byte");
}

}  // namespace
}  // namespace syncline::tensor
