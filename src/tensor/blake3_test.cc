#include "tensor/blake3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace syncline::tensor {
namespace {

// Byte i is i % 251, as in the published test vectors.
std::vector<std::byte> Pattern(std::size_t size) {
  std::vector<std::byte> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i % 251);
  return data;
}

std::string Hex(const std::array<std::uint8_t, 32>& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string HashHex(std::span<const std::byte> data) {
  Blake3 hash;
  hash.Update(data);
  return Hex(hash.Finish());
}

struct Vector {
  std::size_t size;
  const char* digest;
};

// The lengths of the published vectors and some longer ones; digests by the b3sum tool.
constexpr Vector kVectors[] = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
    {2, "7b7015bb92cf0b318037702a6cdd81dee41224f734684c2c122cd6359cb1ee63"},
    {3, "e1be4d7a8ab5560aa4199eea339849ba8e293d55ca0a81006726d184519e647f"},
    {4, "f30f5ab28fe047904037f77b6da4fea1e27241c5d132638d8bedce9d40494f32"},
    {5, "b40b44dfd97e7a84a996a91af8b85188c66c126940ba7aad2e7ae6b385402aa2"},
    {6, "06c4e8ffb6872fad96f9aaca5eee1553eb62aed0ad7198cef42e87f6a616c844"},
    {7, "3f8770f387faad08faa9d8414e9f449ac68e6ff0417f673f602a646a891419fe"},
    {8, "2351207d04fc16ade43ccab08600939c7c1fa70a5c0aaca76063d04c3228eaeb"},
    {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b"},
    {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
    {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee"},
    {127, "d81293fda863f008c09e92fc382a81f5a0b4a1251cba1634016a0f86a6bd640d"},
    {128, "f17e570564b26578c33bb7f44643f539624b05df1a76c81f30acd548c44b45ef"},
    {129, "683aaae9f3c5ba37eaaf072aed0f9e30bac0865137bae68b1fde4ca2aebdcb12"},
    {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
    {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
    {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2"},
    {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
    {4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969"},
    {4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995"},
    {5120, "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833"},
    {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff"},
    {6144, "3e2e5b74e048f3add6d21faab3f83aa44d3b2278afb83b80b3c35164ebeca205"},
    {6145, "f1323a8631446cc50536a9f705ee5cb619424d46887f3c376c695b70e0f0507f"},
    {7168, "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a"},
    {7169, "a003fc7a51754a9b3c7fae0367ab3d782dccf28855a03d435f8cfe74605e7817"},
    {8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63"},
    {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
    {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
    {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
    {131072, "306baba93b1a393cbd35172837c98b0f59a41f64e1b2682ae102d8b2534b9e1c"},
    {131073, "f837d4254d24ba3d50fe3743d46e4af6db5f5d6ab0469197d94e7ba1e906c4d8"},
    {262144, "d57dc906e20d3fd326ffaa85535500486f46a0979f5a323f028dcabfd381fd4a"},
    {1048576, "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343"},
    {3146245, "9cfc5ae3ae33edbd77945e0549dc26743bda1540f37303141125ccd6f7223096"},
    {8388608, "1adedad9735f565ac6e22dab203db63b960c27098f2c0f0fda9adf9238d4c0c9"},
};

TEST(Blake3Test, HashesWholeMessages) {
  for (const Vector& vector : kVectors) {
    SCOPED_TRACE(vector.size);
    EXPECT_EQ(HashHex(Pattern(vector.size)), vector.digest);
  }
}

TEST(Blake3Test, HashesUnalignedInput) {
  for (const Vector& vector : kVectors) {
    SCOPED_TRACE(vector.size);
    std::vector<std::byte> shifted = Pattern(vector.size);
    shifted.insert(shifted.begin(), std::byte{0xee});
    EXPECT_EQ(HashHex(std::span<const std::byte>(shifted).subspan(1)), vector.digest);
  }
}

TEST(Blake3Test, ExtendsAcrossAllVectorsWithRepeatedFinish) {
  const std::vector<std::byte> data = Pattern(std::ranges::max(kVectors, {}, &Vector::size).size);
  Blake3 hash;
  std::size_t done = 0;
  for (const Vector& vector : kVectors) {
    SCOPED_TRACE(vector.size);
    hash.Update(std::span(data).subspan(done, vector.size - done));
    done = vector.size;
    EXPECT_EQ(Hex(hash.Finish()), vector.digest);
    EXPECT_EQ(Hex(hash.Finish()), vector.digest);
  }
}

TEST(Blake3Test, FixedPiecesGiveTheSameDigest) {
  for (const std::size_t piece : {1, 7, 64, 1000, 1023, 1024, 1025, 2048, 3072, 4096, 65536}) {
    for (const Vector& vector : kVectors) {
      if (vector.size > 300'000) continue;
      SCOPED_TRACE(std::to_string(vector.size) + " in pieces of " + std::to_string(piece));
      const std::vector<std::byte> data = Pattern(vector.size);
      Blake3 hash;
      for (std::span<const std::byte> rest = data; !rest.empty();) {
        const std::size_t taken = std::min(piece, rest.size());
        hash.Update(rest.first(taken));
        rest = rest.subspan(taken);
      }
      EXPECT_EQ(Hex(hash.Finish()), vector.digest);
    }
  }
}

TEST(Blake3Test, RandomSplitsGiveTheSameDigest) {
  std::mt19937_64 random(20240607);
  for (int trial = 0; trial < 400; ++trial) {
    const Vector& vector = kVectors[random() % std::size(kVectors)];
    SCOPED_TRACE(std::to_string(vector.size) + ", trial " + std::to_string(trial));
    const std::vector<std::byte> data = Pattern(vector.size);
    Blake3 hash;
    for (std::span<const std::byte> rest = data; !rest.empty();) {
      // Lengths from all magnitudes, zero and whole chunks among them.
      std::size_t taken = random() % (std::size_t{1} << (random() % 22));
      if (random() % 2 == 0) taken &= ~std::size_t{1023};
      taken = std::min(taken, rest.size());
      hash.Update(rest.first(taken));
      rest = rest.subspan(taken);
      if (random() % 8 == 0) (void)hash.Finish();
    }
    EXPECT_EQ(Hex(hash.Finish()), vector.digest);
  }
}

TEST(Blake3Test, CopiesContinueIndependently) {
  const std::vector<std::byte> data = Pattern(102400);
  Blake3 hash;
  hash.Update(std::span(data).first(5120));
  Blake3 copy = hash;
  copy.Update(std::span(data).subspan(5120));
  EXPECT_EQ(Hex(copy.Finish()), HashHex(data));
  EXPECT_EQ(Hex(hash.Finish()), HashHex(std::span(data).first(5120)));
}

TEST(Blake3Test, EveryByteCounts) {
  std::vector<std::byte> data = Pattern(20000);
  const std::string digest = HashHex(data);
  for (std::size_t i = 0; i < data.size(); i += 97) {
    data[i] ^= std::byte{1};
    EXPECT_NE(HashHex(data), digest) << i;
    data[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace syncline::tensor
