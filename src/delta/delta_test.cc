// Both encodings against each other's rules: what is encoded and applied is the new tensor, bit for
// bit, for any contents, and any damage of a frame is an error or at least never a crash.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/result_matchers.h"
#include "delta/block_patch.h"
#include "delta/overwrite_encoder.h"
#include "delta/patch.h"
#include "delta/xor_encoder.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Result;
using base::Status;
using Bytes = std::vector<std::byte>;

struct Encoded {
  Bytes frame;
  std::uint64_t changed_elements = 0;
  ChangedLines lines;
};

tensor::Dtype DtypeOf(std::uint32_t unit) {
  return unit == 1 ? tensor::Dtype::kU8 : tensor::Dtype::kBF16;
}

Encoded Encode(Encoding encoding, ByteSpan old_bytes, ByteSpan new_bytes, std::uint32_t unit) {
  const tensor::Dtype dtype = DtypeOf(unit);
  Encoded encoded{.lines = ChangedLines(old_bytes.size())};
  if (encoding == Encoding::kOverwrite) {
    auto frame = EncodeOverwrite(old_bytes, new_bytes, dtype, encoded.lines);
    EXPECT_OK(frame);
    encoded.frame = std::move(frame->bytes);
    encoded.changed_elements = frame->changed_elements;
    return encoded;
  }
  XorEncoder encoder;
  std::vector<XorPiece> pieces;
  for (std::size_t at = 0; at < old_bytes.size(); at += kXorPieceBytes) {
    const std::size_t size = std::min(kXorPieceBytes, old_bytes.size() - at);
    auto piece = encoder.Encode(old_bytes.subspan(at, size), new_bytes.subspan(at, size), at, dtype,
                                encoded.lines);
    EXPECT_OK(piece);
    encoded.changed_elements += piece->changed_elements;
    pieces.push_back(*std::move(piece));
  }
  if (encoded.changed_elements > 0) encoded.frame = AssembleXorFrame(old_bytes.size(), pieces);
  return encoded;
}

// The tensor that a frame makes of old_bytes, and the records of the way there.
struct Patched {
  Bytes tensor;
  Bytes records;
  std::uint64_t elements = 0;
};
Result<Patched> Patch(Encoding encoding, ByteSpan frame, ByteSpan old_bytes, std::uint32_t unit) {
  Patched patched{.tensor = Bytes(old_bytes.begin(), old_bytes.end())};
  SYNCLINE_ASSIGN(const auto patch, OpenPatch(encoding, frame, old_bytes.size(), DtypeOf(unit)));
  BlockPatch block = patch->MakeBlock();
  for (std::uint64_t at = 0; at < old_bytes.size(); at += kBlockBytes) {
    const std::size_t size = std::min<std::uint64_t>(kBlockBytes, old_bytes.size() - at);
    const auto part = std::span(patched.tensor).subspan(at, size);
    SYNCLINE_TRY(patch->Next(part, block));
    patched.elements += block.Apply(part, at, unit, patched.records);
  }
  SYNCLINE_TRY(patch->Finish());
  return patched;
}

void WriteRecords(const Bytes& records, Side side, Bytes& tensor) {
  for (std::size_t at = 0; at < records.size();) {
    ASSERT_OK_AND_ASSIGN(const BlockRecord record,
                         BlockRecord::Read(std::span(records).subspan(at)));
    ASSERT_LE(record.end(), tensor.size());
    record.Write(side, std::span(tensor).subspan(record.begin(), record.end() - record.begin()));
    at += record.record_bytes();
  }
}

std::uint64_t CountUnits(ByteSpan a, ByteSpan b, std::size_t unit) {
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += unit) {
    count += std::memcmp(&a[at], &b[at], std::min(unit, a.size() - at)) != 0 ? 1 : 0;
  }
  return count;
}

// Random bytes and a copy in which each unit changes with a probability, and some long stretches do
// or do not.
struct Pair {
  Bytes old_bytes;
  Bytes new_bytes;
};
Pair MakePair(std::size_t size, double density, std::uint32_t unit, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Pair pair{Bytes(size), {}};
  for (std::byte& byte : pair.old_bytes) byte = static_cast<std::byte>(random());
  pair.new_bytes = pair.old_bytes;
  std::bernoulli_distribution change(density);
  for (std::size_t at = 0; at < size; at += unit) {
    if (change(random)) pair.new_bytes[at + random() % unit] ^= static_cast<std::byte>(random());
  }
  return pair;
}

void CheckPair(Encoding encoding, const Pair& pair, std::uint32_t unit) {
  const Encoded encoded = Encode(encoding, pair.old_bytes, pair.new_bytes, unit);
  ASSERT_EQ(encoded.changed_elements, CountUnits(pair.old_bytes, pair.new_bytes, unit));
  if (encoded.changed_elements == 0) return;
  ASSERT_OK_AND_ASSIGN(const Patched patched, Patch(encoding, encoded.frame, pair.old_bytes, unit));
  ASSERT_TRUE(patched.tensor == pair.new_bytes);
  ASSERT_EQ(patched.elements, encoded.changed_elements);
  // From either side, and from any mixture of both.
  Bytes image = pair.old_bytes;
  for (std::size_t i = 0; i < image.size(); i += 3) image[i] = pair.new_bytes[i];
  for (int round = 0; round < 2; ++round) {
    WriteRecords(patched.records, Side::kNew, image);
    ASSERT_TRUE(image == pair.new_bytes);
    WriteRecords(patched.records, Side::kOld, image);
    ASSERT_TRUE(image == pair.old_bytes);
  }
  encoded.lines.Copy(pair.new_bytes, image, 0, image.size());
  ASSERT_TRUE(image == pair.new_bytes);
  ASSERT_EQ(CheckFrame(encoding, encoded.frame).value(),
            CountUnits(pair.old_bytes, pair.new_bytes, 1));

  // The frame is standard zstd in one frame: the library reads it in one call and finds what the
  // format says.
  const unsigned long long size =
      ZSTD_getFrameContentSize(encoded.frame.data(), encoded.frame.size());
  Bytes content(size);
  ASSERT_EQ(ZSTD_findFrameCompressedSize(encoded.frame.data(), encoded.frame.size()),
            encoded.frame.size());
  ASSERT_EQ(
      ZSTD_decompress(content.data(), content.size(), encoded.frame.data(), encoded.frame.size()),
      size);
  if (encoding == Encoding::kXor) {
    ASSERT_EQ(size, pair.old_bytes.size());
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(content[i], pair.old_bytes[i] ^ pair.new_bytes[i]);
    }
  }
}

class DeltaTest : public testing::TestWithParam<Encoding> {};
INSTANTIATE_TEST_SUITE_P(Encodings, DeltaTest,
                         testing::Values(Encoding::kXor, Encoding::kOverwrite),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(DeltaTest, AllSizesUnitsAndDensities) {
  std::uint64_t seed = 1;
  for (const std::size_t size :
       {1, 2, 7, 8, 9, 31, 33, 1000, 65536, 65537, 131072, 131073, 524288, 1'700'001}) {
    for (const std::uint32_t unit : {1, 2}) {
      if (size % unit != 0) continue;
      for (const double density : {0.0, 0.00001, 0.003, 0.05, 0.4, 1.0}) {
        SCOPED_TRACE(testing::Message() << size << " bytes, unit " << unit << ", " << density);
        CheckPair(GetParam(), MakePair(size, density, unit, seed++), unit);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(DeltaTest, ChangesOnlyAtTheVeryStartOrEnd) {
  for (const std::size_t size : {131072UL, 3 * kXorPieceBytes, 2 * kXorPieceBytes + 2}) {
    for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
      Pair pair = MakePair(size, 0, 2, 9);
      pair.new_bytes[at] ^= std::byte{1};
      CheckPair(GetParam(), pair, 2);
    }
  }
}

// Runs of equal and of different bytes of any length, so that every boundary of the encoder is met.
RC_GTEST_PROP(DeltaProperty, RunsOfAnyLength, ()) {
  const auto unit = *rc::gen::element<std::uint32_t>(1, 2);
  const auto runs =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 40'000));
  Pair pair;
  bool differs = false;
  for (const std::uint32_t run : runs) {
    pair.old_bytes.resize(pair.old_bytes.size() + run, std::byte{7});
    pair.new_bytes.resize(pair.old_bytes.size(), differs ? std::byte{9} : std::byte{7});
    differs = !differs;
  }
  pair.old_bytes.resize(pair.old_bytes.size() / 4 * 4);
  pair.new_bytes.resize(pair.old_bytes.size());
  for (const Encoding encoding : {Encoding::kXor, Encoding::kOverwrite}) {
    CheckPair(encoding, pair, unit);
  }
}

TEST_P(DeltaTest, AnyDamageIsAnErrorOrAnotherTensorButNeverACrash) {
  const Pair pair = MakePair(3000, 0.1, 2, 5);
  const Encoded encoded = Encode(GetParam(), pair.old_bytes, pair.new_bytes, 2);
  for (std::size_t size = 0; size < encoded.frame.size(); ++size) {
    EXPECT_ERROR(Patch(GetParam(), ByteSpan(encoded.frame).first(size), pair.old_bytes, 2),
                 Code::kCorrupt, "");
  }
  Bytes longer = encoded.frame;
  longer.push_back(std::byte{0});
  EXPECT_ERROR(Patch(GetParam(), longer, pair.old_bytes, 2), Code::kCorrupt, "1 bytes follow");
  for (std::size_t at = 0; at < encoded.frame.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      Bytes damaged = encoded.frame;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      (void)Patch(GetParam(), damaged, pair.old_bytes, 2);
      (void)CheckFrame(GetParam(), damaged);
    }
  }
}

TEST_P(DeltaTest, FramesOfAnotherTensorAreRefused) {
  const Pair pair = MakePair(3000, 1.0, 2, 5);
  const Encoded encoded = Encode(GetParam(), pair.old_bytes, pair.new_bytes, 2);
  const Bytes smaller(2000);
  EXPECT_ERROR(Patch(GetParam(), encoded.frame, smaller, 2), Code::kCorrupt,
               GetParam() == Encoding::kXor ? "decompresses to 3000 bytes, expected 2000" : "");
}

Bytes Compress(const Bytes& content) {
  Bytes frame(ZSTD_compressBound(content.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1));
  return frame;
}

Bytes OverwriteContent(const std::vector<std::uint32_t>& numbers, std::size_t values) {
  Bytes content(numbers.size() * 4 + values);
  std::ranges::copy(std::as_bytes(std::span(numbers)), content.begin());
  return content;
}

TEST(OverwriteTest, BadPositionsAndCountsAreNamed) {
  const Bytes tensor(100);
  const auto apply = [&](const std::vector<std::uint32_t>& numbers, std::size_t values) {
    return Patch(Encoding::kOverwrite, Compress(OverwriteContent(numbers, values)), tensor, 1);
  };
  EXPECT_OK(apply({2, 0, 99}, 2));
  EXPECT_OK(apply({0}, 0));
  EXPECT_ERROR(apply({1, 100}, 1), Code::kCorrupt, "position 100 lies outside of the 100 bytes");
  EXPECT_ERROR(apply({2, 5, 5}, 2), Code::kCorrupt, "position 5 follows 5");
  EXPECT_ERROR(apply({2, 5, 4}, 2), Code::kCorrupt, "position 4 follows 5");
  EXPECT_ERROR(apply({2, 5, 6}, 1), Code::kCorrupt, "2 positions take 14");
  EXPECT_ERROR(apply({4'000'000'000}, 9), Code::kCorrupt, "4000000000 positions");
  EXPECT_ERROR(apply({}, 3), Code::kCorrupt, "");
}

TEST(OverwriteTest, CheckedWithoutTheTensor) {
  const auto frame = [](std::uint32_t count, const std::vector<std::uint32_t>& words, bool values) {
    Bytes content(4 + 4 * words.size() + (values ? count : 0));
    base::Store(content.data(), count);
    for (std::size_t i = 0; i < words.size(); ++i) base::Store(&content[4 + 4 * i], words[i]);
    Bytes bytes(ZSTD_compressBound(content.size()));
    bytes.resize(ZSTD_compress(bytes.data(), bytes.size(), content.data(), content.size(), 1));
    return bytes;
  };
  EXPECT_EQ(CheckFrame(Encoding::kOverwrite, frame(3, {0, 7, 0xFFFFFFFF}, true)).value(), 3U);
  EXPECT_ERROR(CheckFrame(Encoding::kOverwrite, frame(2, {7, 7}, true)), Code::kCorrupt, "ascend");
  EXPECT_ERROR(CheckFrame(Encoding::kOverwrite, frame(2, {6, 7}, false)), Code::kCorrupt, "ends");
  EXPECT_ERROR(CheckFrame(Encoding::kOverwrite, frame(1, {6, 7}, true)), Code::kCorrupt, "more");
  EXPECT_ERROR(CheckFrame(Encoding::kOverwrite, frame(0xFFFFFFFF, {}, false)), Code::kCorrupt,
               "ends");
  std::vector<std::uint32_t> many(100'000);
  std::iota(many.begin(), many.end(), 5);
  EXPECT_EQ(CheckFrame(Encoding::kOverwrite, frame(100'000, many, true)).value(), 100'000U);
}

TEST(XorTest, LongUnchangedStretchesCostFourBytesABlock) {
  Pair pair = MakePair(64 * 131072, 0, 2, 3);
  pair.new_bytes[5'000'000] ^= std::byte{1};
  const Encoded encoded = Encode(Encoding::kXor, pair.old_bytes, pair.new_bytes, 2);
  EXPECT_LT(encoded.frame.size(), 64U * 4 + 100);
}

TEST(RecordTest, ABlockAtTheEndOfAllNumbersIsNone) {
  const auto record = [](std::uint64_t block) {
    Bytes bytes(24 + 2 + 2);
    base::Store(bytes.data(), block);
    base::Store(&bytes[8], std::uint32_t{1});
    base::Store(&bytes[12], std::uint8_t{1});
    base::Store(&bytes[24], std::uint16_t{65535});
    return bytes;
  };
  const Bytes last = record(~std::uint64_t{0} - 2 * kBlockBytes + 1);
  ASSERT_OK_AND_ASSIGN(const BlockRecord read, BlockRecord::Read(last));
  EXPECT_LT(read.begin(), read.end());
  const Bytes beyond = record(~std::uint64_t{0} - kBlockBytes + 1);
  EXPECT_ERROR(BlockRecord::Read(beyond), Code::kCorrupt, "no record of a block");
}

// A frame that does not say its size, of one block of zstd's RLE kind.
TEST(XorTest, ContentBeyondTheTensorIsRefusedWithinABlock) {
  const auto frame = [](std::uint32_t content) {
    Bytes bytes = {std::byte{0x28}, std::byte{0xB5}, std::byte{0x2F},
                   std::byte{0xFD}, std::byte{0},    std::byte{0x58}};
    const std::uint32_t head = 1 | 1 << 1 | content << 3;
    for (const int shift : {0, 8, 16}) bytes.push_back(static_cast<std::byte>(head >> shift));
    bytes.push_back(std::byte{7});
    return bytes;
  };
  EXPECT_OK(Patch(Encoding::kXor, frame(1000), Bytes(1000), 1));
  for (const std::uint32_t content : {1001U, 17384U}) {
    EXPECT_ERROR(Patch(Encoding::kXor, frame(content), Bytes(1000), 1), Code::kCorrupt,
                 "more than");
  }
  EXPECT_ERROR(Patch(Encoding::kXor, frame(999), Bytes(1000), 1), Code::kCorrupt, "ends after 999");
}

TEST(XorTest, FramesOfTheLibraryItselfAreRead) {
  const Pair pair = MakePair(1'000'000, 0.02, 2, 4);
  Bytes image(pair.old_bytes.size());
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = pair.old_bytes[i] ^ pair.new_bytes[i];
  ASSERT_OK_AND_ASSIGN(const Patched applied,
                       Patch(Encoding::kXor, Compress(image), pair.old_bytes, 2));
  EXPECT_TRUE(applied.tensor == pair.new_bytes);
}

}  // namespace
}  // namespace syncline::delta
