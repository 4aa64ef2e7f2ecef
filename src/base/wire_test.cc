#include "base/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/result_matchers.h"

namespace syncline::base {
namespace {

std::vector<std::byte> Message() {
  WireWriter writer;
  writer.Put<std::uint32_t>(7);
  writer.Put<std::uint8_t>(200);
  writer.PutText("rank 1");
  writer.PutArray<std::int16_t>({-1, 2, 3});
  writer.PutArray<std::uint64_t>({});
  writer.Put(2.5);
  return std::move(writer).Take();
}

TEST(Wire, WhatIsPutIsTaken) {
  const std::vector<std::byte> bytes = Message();
  WireReader reader(bytes);
  EXPECT_EQ(reader.Take<std::uint32_t>(), 7U);
  EXPECT_EQ(reader.Take<std::uint8_t>(), 200);
  EXPECT_EQ(reader.TakeText(), "rank 1");
  EXPECT_THAT(reader.TakeArray<std::int16_t>(), testing::ElementsAre(-1, 2, 3));
  EXPECT_TRUE(reader.TakeArray<std::uint64_t>().empty());
  EXPECT_ERROR(reader.status(), Code::kCorrupt, "too long");
  EXPECT_EQ(reader.Take<double>(), 2.5);
  EXPECT_OK(reader.status());
}

TEST(Wire, EveryShorterMessageIsAnError) {
  const std::vector<std::byte> bytes = Message();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    WireReader reader(ByteSpan(bytes).first(size));
    reader.Take<std::uint32_t>();
    reader.Take<std::uint8_t>();
    reader.TakeText();
    reader.TakeArray<std::int16_t>();
    reader.TakeArray<std::uint64_t>();
    reader.Take<double>();
    EXPECT_ERROR(reader.status(), Code::kCorrupt, "too short");
  }
}

TEST(Wire, HugeCountsAreNotBelieved) {
  WireWriter writer;
  writer.Put<std::uint64_t>(~std::uint64_t{0} / 4);
  const std::vector<std::byte> bytes = std::move(writer).Take();
  WireReader array(bytes);
  EXPECT_TRUE(array.TakeArray<std::uint64_t>().empty());
  EXPECT_ERROR(array.status(), Code::kCorrupt, "too short");
  WireReader text(bytes);
  EXPECT_EQ(text.TakeText(), "");
  EXPECT_ERROR(text.status(), Code::kCorrupt, "too short");
}

}  // namespace
}  // namespace syncline::base
