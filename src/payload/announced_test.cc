#include "payload/announced.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/result_matchers.h"

namespace syncline::payload {
namespace {

using base::Code;
using Shapes = std::vector<std::vector<std::uint64_t>>;

TEST(AnnouncedTest, TensorsLieOneAfterTheOther) {
  ASSERT_OK_AND_ASSIGN(
      auto tensors,
      AnnouncedTensors({"a", "b", "c"}, {"bfloat16", "uint8", "float32"}, Shapes{{2, 3}, {0}, {}}));
  EXPECT_EQ(ByteCounts(tensors), (std::vector<std::uint64_t>{12, 0, 4}));
  EXPECT_EQ(TotalBytes(tensors), 16);
  auto memory = std::make_shared<std::vector<std::byte>>(20);
  const std::byte* begin = memory->data();
  const auto batch = MakeBatch(std::move(tensors), *memory, memory);
  memory.reset();
  ASSERT_EQ(batch->tensors().size(), 3);
  EXPECT_EQ(batch->tensors()[0].bytes.size(), 12);
  EXPECT_EQ(batch->tensors()[2].bytes.data(), begin + 12);
  EXPECT_EQ(batch->tensors()[2].dtype, tensor::Dtype::kF32);
}

// One element of torch holds two values.
TEST(AnnouncedTest, PackedValues) {
  ASSERT_OK_AND_ASSIGN(const auto tensors,
                       AnnouncedTensors({"a"}, {"float4_e2m1fn_x2"}, Shapes{{3, 4}}));
  EXPECT_EQ(tensors[0].shape, (std::vector<std::uint64_t>{3, 8}));
  EXPECT_EQ(TotalBytes(tensors), 12);
}

TEST(AnnouncedTest, WhatIsWrongIsNamed) {
  EXPECT_ERROR(AnnouncedTensors({"a", "b"}, {"bool"}, Shapes{{1}, {1}}), Code::kInvalidArgument,
               "2, 1 and 2");
  EXPECT_ERROR(AnnouncedTensors({"a"}, {"float31"}, Shapes{{1}}), Code::kInvalidArgument,
               "float31");
  EXPECT_ERROR(AnnouncedTensors({"a"}, {"FloatStorage"}, Shapes{{1}}), Code::kInvalidArgument,
               "FloatStorage");
  EXPECT_ERROR(AnnouncedTensors({"a"}, {"bool"}, Shapes{{1ULL << 40, 1ULL << 40}}),
               Code::kInvalidArgument, "too large");
  const std::vector<std::uint64_t> large = {1ULL << 45};
  EXPECT_ERROR(AnnouncedTensors({"a", "b", "c"}, {"bool", "bool", "bool"}, {large, large, large}),
               Code::kInvalidArgument, "together");
}

}  // namespace
}  // namespace syncline::payload
