#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace syncline::base {
namespace {

// Every start of both sides within a line, and sizes around the least one that is streamed.
TEST(StreamCopy, CopiesExactlyTheBytesAtAnyAddress) {
  constexpr std::size_t kRoom = 3 * 4096;
  std::mt19937 random(7);
  std::vector<std::byte> source(kRoom);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random() | 1);
  for (std::size_t to = 0; to < 65; ++to) {
    for (const std::size_t from : {0, 1, 16, 63}) {
      for (const std::size_t bytes : {0, 1, 64, 4095, 4096, 4097, 4159, 4160, 8192, 9001}) {
        std::vector<std::byte> target(kRoom);
        StreamCopy(target.data() + to, source.data() + from, bytes);
        std::vector<std::byte> expected(kRoom);
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        ASSERT_EQ(target, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(StreamCopy, NothingMayBeNowhere) { StreamCopy(nullptr, nullptr, 0); }

}  // namespace
}  // namespace syncline::base
