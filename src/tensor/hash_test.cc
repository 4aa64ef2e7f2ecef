#include "tensor/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace syncline::tensor {
namespace {

std::vector<std::byte> Sample(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

// Expected values from `xxhsum -H128`, `b3sum` and zlib's adler32.
TEST(HashTest, AgreesWithOtherPrograms) {
  const std::vector<std::byte> bytes = Sample(100'000);
  EXPECT_EQ(HashHex(HashKind::kXxh3, bytes), "54182c58bbb1337c42c23aeead96750d");
  EXPECT_EQ(HashHex(HashKind::kBlake3, bytes),
            "d93c23eedaf165a7e0be908ba86f1a7a520d568d2d13cde787c8580c5c72cc54");
  EXPECT_EQ(HashHex(HashKind::kAdler32, bytes), "84cba994");
  EXPECT_EQ(HashHex(HashKind::kXxh3, {}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashHex(HashKind::kAdler32, {}), "00000001");
}

TEST(HashTest, PiecesGiveTheHashOfTheWhole) {
  const std::vector<std::byte> bytes = Sample(20'000);
  for (const HashKind kind : {HashKind::kXxh3, HashKind::kBlake3, HashKind::kAdler32}) {
    const auto hasher = MakeHasher(kind);
    for (const int round : {0, 1}) {
      base::ByteSpan rest = bytes;
      for (std::size_t piece = 1; !rest.empty(); piece = piece * 3 % 4001 + 1) {
        const std::size_t take = std::min(piece, rest.size());
        hasher->Update(rest.first(take));
        rest = rest.subspan(take);
      }
      EXPECT_EQ(hasher->Hex(), HashHex(kind, bytes)) << Name(kind) << round;
      hasher->Reset();
    }
    EXPECT_EQ(FindHashKind(Name(kind)), kind);
  }
  EXPECT_EQ(FindHashKind("md5"), std::nullopt);
}

}  // namespace
}  // namespace syncline::tensor
