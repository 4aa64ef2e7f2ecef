#include "tensor/digest.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "tensor/dtype.h"

namespace syncline::tensor {
namespace {

using base::ByteSpan;
__extension__ using Big = unsigned __int128;

// The definition in docs/format.md once more, a unit at a time, with sums that are reduced only at
// their end: those of a block stay below 2^76.
class Oracle {
 public:
  static Digest Of(ByteSpan bytes, std::size_t unit_bytes, std::uint64_t first) {
    std::uint64_t lanes[2] = {};
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const std::size_t units = bytes.size() / unit_bytes;
      for (std::size_t i = 0; i < units;) {
        const std::uint64_t block = (first + i) / 4096;
        Big sum = 0;
        for (; i < units && (first + i) / 4096 == block; ++i) {
          std::uint64_t x = 0;
          for (std::size_t byte = unit_bytes; byte-- > 0;) {
            x = x * 256 + static_cast<std::uint64_t>(bytes[i * unit_bytes + byte]);
          }
          sum += Big{x} * (Half(Draw(0, (first + i) % 4096), lane) | 1);
        }
        const Big key = Draw(0x53796e636c696e65, 2 * block + lane) | 1;
        lanes[lane] += static_cast<std::uint64_t>(key * sum);
      }
    }
    return {lanes[0], lanes[1]};
  }

 private:
  static std::uint64_t Half(std::uint64_t drawn, std::size_t lane) {
    return lane == 0 ? drawn % (std::uint64_t{1} << 32) : drawn >> 32;
  }

  static std::uint64_t Draw(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t z = seed + (index + 1) * 11400714819323198485U;
    z = (z ^ z >> 30) * 13787848793156543929U;
    z = (z ^ z >> 27) * 10723151780598845931U;
    return z ^ z >> 31;
  }
};

std::vector<std::byte> Random(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> Sample(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

// The vectors of docs/format.md.
TEST(DigestTest, KnownVectors) {
  const std::vector<std::byte> sample = Sample(100'000);
  EXPECT_EQ(DigestOf({}, 2).Hex(), "00000000000000000000000000000000");
  EXPECT_EQ(DigestOf(sample, 1).Hex(), "98da6f2278e7044592374b2ad1ff2aa5");
  EXPECT_EQ(DigestOf(sample, 2).Hex(), "bd2cce1340559e299ea2c1cdc54073e5");
  EXPECT_EQ(DigestOf(sample, 4).Hex(), "0119cb16f8a446f6b002fcc26b95dba6");
  EXPECT_EQ(DigestOf(ByteSpan(sample).first(8), 2, 4095).Hex(), "f79fed397c43c13414e00f36c569e7dc");
}

// Every vector width that this machine has gives what the oracle gives, also where a sum wraps and
// where `bytes` is not aligned.
TEST(DigestTest, EachTargetAgreesWithTheOracle) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const std::size_t unit : {1, 2, 4}) {
      for (const std::size_t units :
           {0, 1, 2, 3, 15, 16, 17, 31, 33, 100, 4095, 4096, 4097, 9000}) {
        for (const std::uint64_t first :
             {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{4095}, std::uint64_t{4096},
              (std::uint64_t{1} << 40) + 77, ~std::uint64_t{0} - 10'000}) {
          std::vector<std::byte> bytes = Random(unit * units + 1, units + first);
          const ByteSpan unaligned = ByteSpan(bytes).subspan(1);
          ASSERT_EQ(DigestOf(unaligned, unit, first), Oracle::Of(unaligned, unit, first))
              << hwy::TargetName(target) << " " << unit << " " << units << " " << first;
        }
      }
      const std::vector<std::byte> ones(unit * 4096, std::byte{0xff});
      ASSERT_EQ(DigestOf(ones, unit), Oracle::Of(ones, unit, 0)) << hwy::TargetName(target);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

// What keeps the odds: odd keys, so that no change of a single unit goes unseen, and no two places
// of a block with the same one.
TEST(DigestTest, KeysAreOddAndDiffer) {
  for (std::size_t lane = 0; lane < 2; ++lane) {
    std::set<std::uint32_t> places;
    std::set<std::uint64_t> blocks;
    for (std::size_t i = 0; i < kDigestBlock; ++i) {
      places.insert(kDigestPlaceKeys[lane][i]);
      blocks.insert(DigestBlockKey(i, lane));
      EXPECT_EQ(kDigestPlaceKeys[lane][i] % 2, 1U);
      EXPECT_EQ(DigestBlockKey(i, lane) % 2, 1U);
    }
    EXPECT_EQ(places.size(), kDigestBlock);
    EXPECT_EQ(blocks.size(), kDigestBlock);
  }
}

TEST(DigestTest, HexIsReadBack) {
  const Digest digest{0x0123'4567'89ab'cdef, 0xf0};
  EXPECT_EQ(digest.Hex(), "00000000000000f00123456789abcdef");
  EXPECT_EQ(Digest::Parse(digest.Hex()), digest);
  for (const char* wrong :
       {"", "0", "00000000000000f00123456789abcdeF", "00000000000000f00123456789abcde",
        "00000000000000f00123456789abcdef0", "-0000000000000f00123456789abcdef",
        "0x000000000000f00123456789abcdef", "00000000000000f0 123456789abcdeg"}) {
    EXPECT_EQ(Digest::Parse(wrong), std::nullopt) << wrong;
  }
}

RC_GTEST_PROP(DigestTest, PiecesAddUp, ()) {
  const auto unit = *rc::gen::element<std::size_t>(1, 2, 4);
  const auto units = *rc::gen::inRange<std::size_t>(0, 20'000);
  const auto first = *rc::gen::arbitrary<std::uint64_t>();
  const std::vector<std::byte> bytes = Random(units * unit, *rc::gen::arbitrary<std::uint64_t>());
  Digest sum;
  for (std::size_t at = 0; at < units;) {
    const auto take = *rc::gen::inRange<std::size_t>(1, units - at + 1);
    sum += DigestOf(ByteSpan(bytes).subspan(at * unit, take * unit), unit, first + at);
    at += take;
  }
  RC_ASSERT(sum == DigestOf(bytes, unit, first));
}

// Changes of whole units, and of parts of them as journals record them, in any order.
RC_GTEST_PROP(DigestTest, ChangesLeadFromTheOldToTheNew, ()) {
  const auto unit = *rc::gen::element<std::size_t>(1, 2, 4);
  const auto part = *rc::gen::element<std::size_t>(1, 2, 4);
  RC_PRE(part <= unit);
  const auto units = *rc::gen::inRange<std::size_t>(1, 20'000);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::byte> bytes = Random(units * unit, random());
  const Digest before = DigestOf(bytes, unit);
  DigestChange change(unit);
  const auto count = *rc::gen::inRange<std::size_t>(0, 2'000);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = random() % (bytes.size() / part) * part;
    std::uint64_t old_bits = 0;
    std::uint64_t new_bits = 0;
    std::memcpy(&old_bits, &bytes[at], part);
    for (std::size_t byte = 0; byte < part; ++byte) {
      if (random() % 2 == 0) bytes[at + byte] = static_cast<std::byte>(random());
    }
    std::memcpy(&new_bits, &bytes[at], part);
    if (part == unit && i % 2 == 0) {
      change.Add(at / unit, old_bits, new_bits);
    } else {
      change.AddAt(at, old_bits, new_bits);
    }
  }
  RC_ASSERT(before + change.difference() == DigestOf(bytes, unit));
  RC_ASSERT(DigestOf(bytes, unit) - change.difference() == before);
}

TEST(DigestTest, UnitsOfElementTypes) {
  for (const DtypeInfo& info : DtypeTable()) {
    const std::uint32_t expected = info.bits >= 32 ? 4 : info.bits == 16 ? 2 : 1;
    EXPECT_EQ(DigestUnitBytes(info.dtype), expected) << info.name;
  }
}

}  // namespace
}  // namespace syncline::tensor
