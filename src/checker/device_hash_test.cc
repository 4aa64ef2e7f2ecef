#include "checker/device_hash.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "checker/checker.h"

namespace syncline::checker {
namespace {

using base::ByteSpan;
using Bytes = std::vector<std::byte>;

Bytes Sequence(std::size_t size, std::size_t modulus) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % modulus);
  return bytes;
}

Bytes Random(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The definition in docs/format.md once more, a word at a time in 64 bits that are reduced where it
// says so.
class Oracle {
 public:
  static std::uint64_t Of(ByteSpan bytes) {
    const std::uint64_t n = (bytes.size() + 3) / 4;
    std::uint64_t sum = 0;
    for (std::uint64_t tile = 0; 8192 * tile < n; ++tile) {
      std::uint64_t h1 = 0;
      std::uint64_t h2 = 0;
      for (std::uint64_t i = 8192 * tile; i < std::min(n, 8192 * (tile + 1)); ++i) {
        const std::uint64_t word = Word(bytes, i);
        h1 = Low(h1 + Mix(word ^ (Low(i * 0x27D4EB2D + 0x243F6A88) ^ Turn(Low(i), 15))));
        h2 = Low(h2 + Mix(word ^ (Low(i * 0x165667B1 + kSeed2) ^ Turn(Low(i), 13))));
      }
      sum += (Mix(h1 ^ Low(4 * n)) << 32) + Mix(h2 ^ Low(4 * n));
    }
    sum = (sum ^ (sum >> 30)) * 0xBF58476D1CE4E5B9U;
    sum = (sum ^ (sum >> 27)) * 0x94D049BB133111EBU;
    return sum ^ (sum >> 31);
  }

 private:
  static constexpr std::uint64_t Low(std::uint64_t x) { return x % (std::uint64_t{1} << 32); }
  static constexpr std::uint64_t kSeed2 =
      (0x243F6A88ULL * 0x9E3779B1ULL % (1ULL << 32)) ^ 0xDEADBEEF;
  static_assert(kSeed2 == 0x02C74EE7);

  static std::uint64_t Word(ByteSpan bytes, std::uint64_t i) {
    std::uint64_t word = 0;
    for (std::uint64_t k = 4; k-- > 0;) {
      word = word * 256;
      if (4 * i + k < bytes.size()) word += static_cast<std::uint64_t>(bytes[4 * i + k]);
    }
    return word;
  }

  static std::uint64_t Turn(std::uint64_t x, int by) { return Low(x << by) + (x >> (32 - by)); }

  static std::uint64_t Mix(std::uint64_t x) {
    x = Low((x ^ (x >> 16)) * 0x85EBCA6B);
    x = Low((x ^ (x >> 13)) * 0xC2B2AE35);
    return x ^ (x >> 16);
  }
};

std::uint64_t HashOf(ByteSpan bytes) {
  DeviceHash hash(bytes.size());
  hash.Add(0, bytes);
  return hash.Value();
}

std::string Hex(const Bytes& bytes) { return CheckHashHex(CheckHash::kDevice, bytes); }

// Those of docs/format.md.
TEST(DeviceHashTest, KnownVectors) {
  EXPECT_EQ(Hex({}), "0000000000000000");
  EXPECT_EQ(Hex(Bytes(256)), "04f91fe4319d3c4e");
  EXPECT_EQ(Hex(Bytes(4)), "3d93a6540b54ef2a");
  EXPECT_EQ(Hex(Sequence(16, 256)), "aafe3691ff04321d");
  EXPECT_EQ(Hex(Sequence(256, 256)), "ac371f47da03664b");
  EXPECT_EQ(Hex(Sequence(40'000, 251)), "16307b978468d89d");
  EXPECT_EQ(Hex({std::byte{1}}), "1f3bb5b817d9ee21");
  EXPECT_EQ(Hex({std::byte{1}, std::byte{2}, std::byte{3}}), "78fb8b5ebce4f7df");
  EXPECT_EQ(Hex({std::byte{1}, std::byte{2}, std::byte{3}, std::byte{0}}), "78fb8b5ebce4f7df");
  std::vector<std::uint32_t> numbers(20'000);
  std::iota(numbers.begin(), numbers.end(), 0U);
  const ByteSpan bytes = std::as_bytes(std::span(numbers));
  EXPECT_EQ(CheckHashHex(CheckHash::kDevice, bytes), "3fadc80e297acd67");
}

TEST(DeviceHashTest, OfTheProcessorIsTheBeginningOfSha256) {
  // SHA-256 of nothing begins with e3b0…, that of "abc" with ba78… (FIPS 180-4).
  EXPECT_EQ(CheckHashHex(CheckHash::kSha256, {}), "e3b0c44298fc1c14");
  EXPECT_EQ(CheckHashHex(CheckHash::kSha256, base::AsBytes("abc")), "ba7816bf8f01cfea");
}

TEST(DeviceHashTest, OverallChecksumOrdersNames) {
  const NamedHash a = {"a.weight", "aafe3691ff04321d"};
  const NamedHash draft = {"draft.a.weight", "04f91fe4319d3c4e"};
  constexpr const char* kExpected =
      "660ad45ebe48f923b0566b91a35676bb2869ca8000b8da00209f0b55767929fb";
  EXPECT_EQ(OverallChecksum({a, draft}), kExpected);
  EXPECT_EQ(OverallChecksum({draft, a}), kExpected);
  EXPECT_NE(OverallChecksum({a}), kExpected);
  // By code points, as UTF-8 sorts: not as signed bytes.
  EXPECT_EQ(OverallChecksum({{"\u00e9", "1"}, {"z", "2"}}), OverallChecksum({{"z2\u00e9", "1"}}));
}

// Every vector width that this machine has, also where `bytes` is not aligned.
TEST(DeviceHashTest, EachTargetAgreesWithTheOracle) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const std::size_t size :
         {1, 3, 4, 5, 31, 32, 63, 64, 65, 127, 1000, 32'764, 32'767, 32'768, 32'769, 100'003}) {
      const Bytes bytes = Random(size + 1, size);
      const ByteSpan unaligned = ByteSpan(bytes).subspan(1);
      ASSERT_EQ(HashOf(unaligned), Oracle::Of(unaligned)) << hwy::TargetName(target) << " " << size;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

// The numbers of words and the length wrap at 2^32. A tensor of 16 GiB is not made for that: only
// its last tile is hashed, once as it is and once with the number of a word that has wrapped.
TEST(DeviceHashTest, NumbersOfWordsWrap) {
  const Bytes tile = Random(DeviceHash::kTileBytes, 1);
  constexpr std::uint64_t kWrap = std::uint64_t{1} << 34;
  DeviceHash far(kWrap + tile.size());
  far.Add(kWrap, tile);
  EXPECT_EQ(far.Value(), Oracle::Of(tile));
}

RC_GTEST_PROP(DeviceHashTest, PiecesAddUp, ()) {
  const auto size = *rc::gen::inRange<std::size_t>(0, 150'000);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Bytes bytes = Random(size, random());
  std::vector<DeviceHash> parts(3, DeviceHash(size));
  for (std::size_t at = 0; at < size;) {
    const std::size_t limit = random() % 2 == 0 ? 100 : 80'000;
    const std::size_t take = std::min<std::size_t>(size - at, 4 * (1 + random() % (limit / 4)));
    parts[random() % 3].Add(at, ByteSpan(bytes).subspan(at, take));
    at += take;
  }
  parts[2].Merge(parts[0]);
  parts[2].Merge(parts[1]);
  RC_ASSERT(parts[2].Value() == Oracle::Of(bytes));
}

}  // namespace
}  // namespace syncline::checker
