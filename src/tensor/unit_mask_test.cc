#include "tensor/unit_mask.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <random>
#include <vector>

namespace syncline::tensor {
namespace {

// Every vector width that this machine has gives what a plain loop gives.
TEST(UnitMaskTest, EachTargetAgreesWithAPlainLoop) {
  std::mt19937_64 random(1);
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const std::size_t unit : {1, 2}) {
      for (const std::size_t units : {0, 1, 3, 63, 64, 65, 127, 128, 200, 1000}) {
        const std::size_t bytes = unit * units;
        std::vector<std::byte> a(bytes + 1);
        std::vector<std::byte> b(bytes + 1);
        for (std::size_t i = 0; i < bytes; ++i) {
          a[i] = static_cast<std::byte>(random());
          b[i] = random() % 8 == 0 ? static_cast<std::byte>(random()) : a[i];
        }
        std::vector<std::byte> image(bytes + 1, std::byte{0x55});
        std::vector<std::uint64_t> mask(MaskWords(bytes, unit) + 1, 77);
        XorWithMask(a.data(), b.data(), bytes, unit, image.data(), mask.data());
        std::vector<std::uint64_t> again(mask.size(), 77);
        NonZeroMask(image.data(), bytes, unit, again.data());
        EXPECT_EQ(mask, again);
        EXPECT_EQ(mask.back(), 77U);
        EXPECT_EQ(image.back(), std::byte{0x55});
        std::size_t next = 0;
        std::vector<std::size_t> set;
        ForEachSet(mask.data(), mask.size() - 1, [&](std::size_t u) { set.push_back(u); });
        for (std::size_t u = 0; u < units; ++u) {
          const bool differs = std::memcmp(&a[u * unit], &b[u * unit], unit) != 0;
          if (differs) {
            ASSERT_LT(next, set.size()) << hwy::TargetName(target);
            EXPECT_EQ(set[next++], u) << hwy::TargetName(target);
          }
        }
        EXPECT_EQ(next, set.size());
        for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(image[i], a[i] ^ b[i]);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(UnitMaskTest, CountsElementsOfSeveralUnits) {
  const std::uint64_t mask[] = {0b1011'0000'0001'0110, 1ULL << 63};
  EXPECT_EQ(CountElements(mask, 2, 1), 7U);
  EXPECT_EQ(CountElements(mask, 2, 2), 6U);
  EXPECT_EQ(CountElements(mask, 2, 4), 4U);
}

}  // namespace
}  // namespace syncline::tensor
