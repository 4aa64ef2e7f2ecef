#include "payload/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <string>

#include "base/result_matchers.h"
#include "payload/memory_sender.h"

namespace syncline::payload {
namespace {

using base::Code;

TEST(SharedMemory, GivesTheDataBehindTheHeader) {
  const MemorySender sender(2, "weights");
  const auto memory = OpenSharedMemory(sender.name(), 7);
  ASSERT_OK(memory);
  EXPECT_EQ(base::AsText((*memory)->bytes()), "weights");
  const auto part = OpenSharedMemory(sender.name(), 3);
  ASSERT_OK(part);
  EXPECT_EQ(base::AsText((*part)->bytes()), "wei");
  const auto nothing = OpenSharedMemory(sender.name(), 0);
  ASSERT_OK(nothing);
  EXPECT_TRUE((*nothing)->bytes().empty());
}

TEST(SharedMemory, TakesOneFromTheCountWhenDone) {
  const MemorySender sender(3, "weights");
  {
    const auto memory = OpenSharedMemory(sender.name(), 7);
    ASSERT_OK(memory);
    EXPECT_EQ(sender.count(), 3);
  }
  EXPECT_EQ(sender.count(), 2);
  {
    ASSERT_OK(OpenSharedMemory(sender.name(), 7));
  }
  EXPECT_EQ(sender.count(), 1);
  EXPECT_TRUE(sender.IsThere());
}

TEST(SharedMemory, RemovesItWithTheLastCount) {
  const MemorySender sender(1, "weights");
  {
    const auto memory = OpenSharedMemory(sender.name(), 7);
    ASSERT_OK(memory);
    EXPECT_TRUE(sender.IsThere());
  }
  EXPECT_FALSE(sender.IsThere());
  EXPECT_ERROR(OpenSharedMemory(sender.name(), 7), Code::kNotFound, sender.name());
}

TEST(SharedMemory, CountsNeverBelowZero) {
  for (const std::int32_t count : {0, -5}) {
    const MemorySender sender(count, "weights");
    {
      ASSERT_OK(OpenSharedMemory(sender.name(), 7));
    }
    EXPECT_EQ(sender.count(), count);
    EXPECT_TRUE(sender.IsThere());
  }
}

// BR-46: a payload names nothing else on this host.
TEST(Br46, OnlyNamesOfTorchAreOpened) {
  for (const std::string_view name :
       {"", "/", "/etc/passwd", "/torch_1_2", "/torch_1_2_", "/torch__2_3", "/torch_1_2_3_4",
        "torch_1_2_3", "/torch_1_2_3/", "/torch_1_2_3/../x", "/../torch_1_2_3", "/torch_1_2_x",
        "/torch_-1_2_3", "/torch_1_2_3 ", "/Torch_1_2_3", "//torch_1_2_3",
        "/torch_111111111111111111111_2_3"}) {
    EXPECT_FALSE(IsSharedMemoryName(name)) << name;
    EXPECT_ERROR(OpenSharedMemory(name, 1), Code::kInvalidArgument, "is not a name that torch");
  }
  EXPECT_FALSE(IsSharedMemoryName(std::string_view("/torch_1_2_3\0", 13)));
  EXPECT_TRUE(IsSharedMemoryName("/torch_22785_4125294039_0"));
}

TEST(Br46, LinksAreNotFollowed) {
  const MemorySender sender(2, "weights");
  const std::string link = "/torch_" + std::to_string(::getpid()) + "_0_0";
  std::filesystem::create_symlink("/dev/shm" + sender.name(), "/dev/shm" + link);
  EXPECT_FALSE(OpenSharedMemory(link, 7).has_value());
  std::filesystem::remove("/dev/shm" + link);
  EXPECT_EQ(sender.count(), 2);
}

TEST(SharedMemory, RefusesMoreThanThereIs) {
  const MemorySender sender(2, "weights");
  for (const std::uint64_t bytes : {std::uint64_t{8}, ~std::uint64_t{0}, ~std::uint64_t{0} - 63}) {
    EXPECT_ERROR(OpenSharedMemory(sender.name(), bytes), Code::kInvalidArgument,
                 "has 71 bytes, expected a header of 64 and");
  }
  EXPECT_EQ(sender.count(), 2);
  ASSERT_EQ(::truncate(("/dev/shm" + sender.name()).c_str(), 63), 0);
  EXPECT_ERROR(OpenSharedMemory(sender.name(), 0), Code::kInvalidArgument, "has 63 bytes");
}

// Nothing that a sender does ends the process.
TEST(SharedMemory, WhatIsTakenAwayReadsAsZerosAndIsSaid) {
  const std::string data(40'000, 'x');
  const MemorySender sender(2, data);
  const auto memory = OpenSharedMemory(sender.name(), data.size());
  ASSERT_OK(memory);
  EXPECT_OK((*memory)->Intact());
  ASSERT_EQ(::truncate(("/dev/shm" + sender.name()).c_str(), 4096), 0);
  const base::ByteSpan bytes = (*memory)->bytes();
  EXPECT_EQ(bytes[100], std::byte{'x'});
  EXPECT_OK((*memory)->Intact());
  EXPECT_EQ(bytes[20'000], std::byte{0});
  EXPECT_EQ(bytes[39'999], std::byte{0});
  EXPECT_ERROR((*memory)->Intact(), Code::kCorrupt, sender.name() + " became smaller");
}

TEST(SharedMemory, OtherBusErrorsAreNotHeldUp) {
  const std::string data(10, 'x');
  const MemorySender sender(2, data);
  ASSERT_OK(OpenSharedMemory(sender.name(), data.size()));  // the handler is there
  EXPECT_DEATH(std::raise(SIGBUS), "");
}

TEST(SharedMemory, HoldsNoDescriptor) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  const MemorySender sender(2, "weights");
  const auto before = descriptors();
  const auto memory = OpenSharedMemory(sender.name(), 7);
  const auto refused = OpenSharedMemory(sender.name(), 8);
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace syncline::payload
