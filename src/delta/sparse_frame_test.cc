// The library is the reference: what the reader accepts, the library accepts with the same content;
// what the reader calls corrupt, the library refuses. Only "not sparse" says nothing.
#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_compressSequences
#include "delta/sparse_frame.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/result_matchers.h"
#include "delta/xor_encoder.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Result;
using Bytes = std::vector<std::byte>;
using Outcome = SparseFrameReader::Outcome;

constexpr std::size_t kBlock = SparseFrameReader::kMaxBlock;
constexpr std::size_t kMaxContent = 64 << 20;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
using Compressor = std::unique_ptr<ZSTD_CCtx, FreeContext>;

// ---- Both decoders.

// Content of a frame that ends where the bytes do; nothing if the library refuses it.
std::optional<Bytes> LibraryContent(ByteSpan frame) {
  static const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  ZSTD_DCtx_reset(context.get(), ZSTD_reset_session_only);
  ZSTD_inBuffer in = {frame.data(), frame.size(), 0};
  Bytes content;
  Bytes block(kBlock);
  while (content.size() <= kMaxContent) {
    ZSTD_outBuffer out = {block.data(), block.size(), 0};
    const std::size_t before = in.pos;
    const std::size_t left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left)) return std::nullopt;
    content.insert(content.end(), block.begin(),
                   block.begin() + static_cast<std::ptrdiff_t>(out.pos));
    if (left == 0) break;
    if (in.pos == before && out.pos == 0) return std::nullopt;  // truncated
  }
  if (in.pos != in.size) return std::nullopt;
  return content;
}

enum class Verdict { kAccepted, kCorrupt, kNotSparse };

struct Read {
  Verdict verdict = Verdict::kNotSparse;
  Bytes content;
  std::string error;
};

// Reads a frame to its end; also checks what is promised about image and mask. Buffers of the exact
// size, so that tools see any excess.
Read ReadSparse(ByteSpan bytes, std::size_t unit) {
  const auto owned = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, owned.get());
  auto reader = SparseFrameReader::Open({owned.get(), bytes.size()});
  if (!reader) return {};
  Read read;
  Bytes image(SparseFrameReader::kImageBytes);
  std::vector<std::uint64_t> mask(SparseFrameReader::kMaskWords);
  while (true) {
    std::size_t size = 0;
    const Result<Outcome> outcome = reader->NextBlock(image.data(), mask.data(), unit, size);
    if (!outcome) {
      EXPECT_EQ(outcome.error().code, Code::kCorrupt);
      return {.verdict = Verdict::kCorrupt, .content = {}, .error = outcome.error().message};
    }
    if (*outcome == Outcome::kNotSparse) return {};
    if (*outcome == Outcome::kEnd) break;
    EXPECT_LE(size, kBlock);
    EXPECT_TRUE(std::all_of(image.begin() + static_cast<std::ptrdiff_t>(size), image.end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    std::vector<std::uint64_t> expected(mask.size());
    tensor::NonZeroMask(image.data(), kBlock, unit, expected.data());
    EXPECT_TRUE(mask == expected);
    read.content.insert(read.content.end(), image.begin(),
                        image.begin() + static_cast<std::ptrdiff_t>(size));
    std::ranges::fill(image, std::byte{0});
    std::ranges::fill(mask, 0);
    if (read.content.size() > kMaxContent) return {};
  }
  EXPECT_TRUE(reader->content_bytes() == SparseFrameReader::kUnknown ||
              reader->content_bytes() == read.content.size());
  read.verdict = Verdict::kAccepted;
  return read;
}

// Compares both decoders on a frame; returns the reader's verdict.
Verdict Check(ByteSpan frame, std::size_t unit) {
  const Read read = ReadSparse(frame, unit);
  if (read.verdict == Verdict::kNotSparse) return read.verdict;
  const std::optional<Bytes> content = LibraryContent(frame);
  EXPECT_EQ(content.has_value(), read.verdict == Verdict::kAccepted) << read.error;
  if (content && read.verdict == Verdict::kAccepted) {
    EXPECT_EQ(content->size(), read.content.size());
    EXPECT_TRUE(*content == read.content);
  }
  return read.verdict;
}

Verdict CheckContent(ByteSpan frame, std::size_t unit, const Bytes& content) {
  const Read read = ReadSparse(frame, unit);
  if (read.verdict == Verdict::kAccepted) {
    EXPECT_TRUE(read.content == content);
  }
  EXPECT_NE(read.verdict, Verdict::kCorrupt) << read.error;
  EXPECT_EQ(Check(frame, unit), read.verdict);
  return read.verdict;
}

// ---- Frames.

// Mostly zeros: each unit is something else with that probability, with bytes below `values`.
Bytes SparseContent(std::size_t size, double density, std::size_t unit, unsigned values,
                    std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution change(density);
  Bytes content(size);
  for (std::size_t at = 0; at < size; at += unit) {
    if (change(random))
      content[std::min(size - 1, at + random() % unit)] = static_cast<std::byte>(random() % values);
  }
  return content;
}

Bytes OwnFrame(const Bytes& content, std::size_t unit) {
  XorEncoder encoder;
  std::vector<XorPiece> pieces;
  const Bytes zeros(content.size());
  ChangedLines lines(content.size());
  const tensor::Dtype dtype = unit == 1 ? tensor::Dtype::kU8 : tensor::Dtype::kBF16;
  for (std::size_t at = 0; at < content.size(); at += kXorPieceBytes) {
    const std::size_t size = std::min(kXorPieceBytes, content.size() - at);
    pieces.push_back(encoder
                         .Encode(ByteSpan(zeros).subspan(at, size),
                                 ByteSpan(content).subspan(at, size), at, dtype, lines)
                         .value());
  }
  return AssembleXorFrame(content.size(), pieces);
}

Bytes LibraryFrame(const Bytes& content, int level, bool content_size = true, int window_log = 0) {
  const Compressor context(ZSTD_createCCtx());
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, content_size ? 1 : 0);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window_log);
  Bytes frame(ZSTD_compressBound(content.size()));
  frame.resize(
      ZSTD_compress2(context.get(), frame.data(), frame.size(), content.data(), content.size()));
  return frame;
}

// The frame of given sequences; each block ends with one that has no match.
Bytes SequenceFrame(const Bytes& content, const std::vector<ZSTD_Sequence>& sequences,
                    bool repeat_codes, int level) {
  const Compressor context(ZSTD_createCCtx());
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    EXPECT_FALSE(ZSTD_isError(ZSTD_CCtx_setParameter(context.get(), parameter, value)));
  };
  set(ZSTD_c_compressionLevel, level);
  set(ZSTD_c_windowLog, 17);
  set(ZSTD_c_blockDelimiters, ZSTD_sf_explicitBlockDelimiters);
  set(ZSTD_c_searchForExternalRepcodes, repeat_codes ? ZSTD_ps_enable : ZSTD_ps_disable);
  Bytes frame(ZSTD_compressBound(content.size()) + 64);
  const std::size_t size =
      ZSTD_compressSequences(context.get(), frame.data(), frame.size(), sequences.data(),
                             sequences.size(), content.data(), content.size());
  EXPECT_FALSE(ZSTD_isError(size)) << ZSTD_getErrorName(size);
  frame.resize(ZSTD_isError(size) ? 0 : size);
  return frame;
}

// One sequence for each run of at least min_run zeros; with `split` some of these become two, of
// which the second has no literals.
Bytes ZeroRunFrame(const Bytes& content, std::size_t min_run, bool repeat_codes, bool split,
                   int level = 1) {
  std::vector<ZSTD_Sequence> sequences;
  const auto add = [&](unsigned offset, std::size_t literals, std::size_t match) {
    sequences.push_back({.offset = offset,
                         .litLength = static_cast<unsigned>(literals),
                         .matchLength = static_cast<unsigned>(match),
                         .rep = 0});
  };
  for (std::size_t block = 0; block < content.size(); block += kBlock) {
    const std::size_t end = std::min(content.size(), block + kBlock);
    std::size_t literals = block;
    for (std::size_t at = block; at < end;) {
      std::size_t run = at;
      while (run < end && content[run] == std::byte{0}) ++run;
      if (run - at >= min_run) {
        const std::size_t match = run - at - 1;
        const std::size_t first = split && match > 8 ? match / 2 : match;
        add(1, at + 1 - literals, first);
        if (first < match) add(1, 0, match - first);
        literals = run;
      }
      at = run + 1;
    }
    add(0, end - literals, 0);
  }
  return SequenceFrame(content, sequences, repeat_codes, level);
}

// Blocks put together by hand. The window has 128 KiB.
class FrameBuilder {
 public:
  FrameBuilder() { Append({0x28, 0xb5, 0x2f, 0xfd, 0x00, 7 << 3}); }
  explicit FrameBuilder(std::uint64_t content_bytes) {
    Append({0x28, 0xb5, 0x2f, 0xfd, 3 << 6, 7 << 3});
    for (int i = 0; i < 8; ++i) Append({static_cast<int>(content_bytes >> (8 * i) & 0xff)});
  }
  FrameBuilder& Raw(bool last, std::initializer_list<int> bytes) {
    return Head(last, 0, bytes.size()).Append(bytes);
  }
  FrameBuilder& Repeated(bool last, std::size_t size, int byte) {
    return Head(last, 1, size).Append({byte});
  }
  FrameBuilder& Compressed(bool last, std::initializer_list<int> bytes) {
    return Head(last, 2, bytes.size()).Append(bytes);
  }
  FrameBuilder& Head(bool last, std::size_t type, std::size_t size) {
    const std::size_t head = size << 3 | type << 1 | (last ? 1 : 0);
    return Append({static_cast<int>(head & 0xff), static_cast<int>(head >> 8 & 0xff),
                   static_cast<int>(head >> 16)});
  }
  FrameBuilder& Append(std::initializer_list<int> bytes) {
    for (const int byte : bytes) frame.push_back(static_cast<std::byte>(byte));
    return *this;
  }
  Bytes frame;
};

// Which ways of coding occur in the compressed blocks of a frame: "literals 0" to "literals 4"
// (raw, repeated, Huffman in one and in four streams, the same table again), "LL 0" to "LL 3" and
// likewise OF and ML (predefined, one code, own, the same again).
std::set<std::string> Modes(ByteSpan frame) {
  std::set<std::string> modes;
  std::size_t at = ZSTD_frameHeaderSize(frame.data(), frame.size());
  const auto number = [&](std::size_t from, std::size_t n) {
    std::uint64_t value = 0;
    std::memcpy(&value, &frame[from], n);
    return value;
  };
  for (bool last = false; !last;) {
    const std::uint64_t head = number(at, 3);
    at += 3;
    last = (head & 1) != 0;
    const std::size_t body = (head >> 1 & 3) == 1 ? 1 : head >> 3;
    if ((head >> 1 & 3) == 2) {
      const std::uint64_t literals = number(at, 5);
      const unsigned type = literals & 3, format = literals >> 2 & 3;
      std::size_t skip = 0;
      if (type < 2) {
        const std::size_t bytes = format % 2 == 0 ? 1 : format == 1 ? 2 : 3;
        const std::uint64_t count = number(at, bytes) >> (bytes == 1 ? 3 : 4);
        skip = bytes + (type == 0 ? count : 1);
        modes.insert("literals " + std::to_string(type));
      } else {
        const unsigned width = format < 2 ? 10 : format == 2 ? 14 : 18;
        skip = (format < 2 ? 3 : format + 2) + (literals >> (4 + width) & ((1U << width) - 1));
        modes.insert(type == 3 ? "literals 4" : format == 0 ? "literals 2" : "literals 3");
      }
      const std::size_t sequences = at + skip;
      const auto count = static_cast<unsigned>(frame[sequences]);
      if (count > 0) {
        const auto byte = static_cast<unsigned>(frame[sequences + (count < 128   ? 1
                                                                   : count < 255 ? 2
                                                                                 : 3)]);
        modes.insert("LL " + std::to_string(byte >> 6));
        modes.insert("OF " + std::to_string(byte >> 4 & 3));
        modes.insert("ML " + std::to_string(byte >> 2 & 3));
      }
    }
    at += body;
  }
  return modes;
}

// ---- Tests.

TEST(SparseFrameTest, ReadsOurFrames) {
  for (const std::size_t unit : {1U, 2U}) {
    for (const std::size_t size : {2UL, 16UL, 1000UL, kBlock - 2, kBlock, kBlock + 2,
                                   3 * kBlock + 4444, kXorPieceBytes + kBlock}) {
      for (const double density : {0.0, 0.00005, 0.003, 0.05, 0.3, 1.0}) {
        for (const unsigned values : {2U, 16U, 256U}) {
          const Bytes content = SparseContent(size, density, unit, values, size + values);
          EXPECT_EQ(CheckContent(OwnFrame(content, unit), unit, content), Verdict::kAccepted)
              << size << " bytes, units of " << unit << ", density " << density << ", " << values
              << " values";
        }
      }
    }
  }
}

RC_GTEST_PROP(SparseFrameProperty, ReadsOurFrames, ()) {
  const std::size_t unit = *rc::gen::element<std::size_t>(1, 2);
  const std::size_t size = unit * *rc::gen::inRange<std::size_t>(1, kBlock);
  const double density = 1.0 / *rc::gen::element(1, 3, 10, 30, 100, 1000, 30000);
  const Bytes content = SparseContent(size, density, unit, *rc::gen::inRange(1U, 257U),
                                      *rc::gen::arbitrary<std::uint64_t>());
  RC_ASSERT(CheckContent(OwnFrame(content, unit), unit, content) == Verdict::kAccepted);
}

TEST(SparseFrameTest, ReadsFramesOfZeroRuns) {
  for (const std::size_t size : {100UL, 5000UL, kBlock, 2 * kBlock + 2222}) {
    for (const double density : {0.0001, 0.002, 0.02, 0.2}) {
      const Bytes content = SparseContent(size, density, 1, 200, size);
      for (const std::size_t min_run : {4U, 10U, 100U}) {
        for (const bool repeat_codes : {false, true}) {
          for (const bool split : {false, true}) {
            const Bytes frame = ZeroRunFrame(content, min_run, repeat_codes, split);
            for (const std::size_t unit : {1U, 2U}) {
              EXPECT_EQ(CheckContent(frame, unit, content), Verdict::kAccepted)
                  << size << " bytes, density " << density << ", runs of " << min_run
                  << ", repeat codes " << repeat_codes << ", split " << split;
            }
          }
        }
      }
    }
  }
}

// Runs of literals and of zeros of every order of magnitude, at even and odd places.
TEST(SparseFrameTest, ReadsRunsOfAllLengths) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    const auto length = [&](std::size_t least) {
      return least + random() % (std::uint64_t{1} << random() % 17);
    };
    Bytes content;
    while (content.size() < 3 * kBlock) {
      for (std::size_t n = length(1); n > 0; --n)
        content.push_back(static_cast<std::byte>(1 + random() % 3));
      content.resize(content.size() + length(4));
    }
    content.resize(3 * kBlock);
    for (const bool repeat_codes : {false, true}) {
      const Bytes frame = ZeroRunFrame(content, 4, repeat_codes, seed % 2 == 0);
      for (const std::size_t unit : {1U, 2U})
        EXPECT_EQ(CheckContent(frame, unit, content), Verdict::kAccepted);
    }
  }
}

TEST(SparseFrameTest, AgreesWithTheLibraryOnItsFrames) {
  std::vector<Bytes> contents = {Bytes(), Bytes(1), Bytes(17), Bytes(kBlock),
                                 Bytes(3 * kBlock + 5)};
  const std::size_t zeros = contents.size();
  std::mt19937_64 random(zeros);
  for (const double density : {0.0003, 0.01, 0.1}) {
    for (const std::size_t size : {300UL, 70000UL, 2 * kBlock + 10})
      contents.push_back(SparseContent(size, density, 2, 256, size));
  }
  for (const std::size_t size : {50UL, 3000UL, kBlock + 2}) {
    Bytes noise(size), text;
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    while (text.size() < size) {
      const std::string word = std::to_string(random() % 500) + " zeros of the tensor, ";
      for (const char c : word) text.push_back(static_cast<std::byte>(c));
    }
    contents.push_back(std::move(noise));
    contents.push_back(std::move(text));
  }
  for (int level = -5; level <= 19; ++level) {
    for (std::size_t i = 0; i < contents.size(); ++i) {
      for (const bool content_size : {true, false}) {
        const Bytes frame = LibraryFrame(contents[i], level, content_size, i % 3 == 0 ? 10 : 0);
        for (const std::size_t unit : {1U, 2U}) {
          const Verdict verdict = CheckContent(frame, unit, contents[i]);
          if (i < zeros) {
            EXPECT_EQ(verdict, Verdict::kAccepted) << "level " << level << ", content " << i;
          }
        }
      }
    }
  }
}

// Every way of coding literals and sequences is among the frames that were accepted.
TEST(SparseFrameTest, ReadsEveryMode) {
  std::set<std::string> seen;
  for (const int level : {-3, 1, 3, 7, 12, 19}) {
    for (const double density : {0.0001, 0.0005, 0.002, 0.01, 0.1}) {
      for (const unsigned values : {1U, 2U, 3U, 20U, 256U}) {
        for (const bool repeat_codes : {false, true}) {
          Bytes content = SparseContent(3 * kBlock, density, 2, values, values);
          if (values == 1) {  // all literals are zeros
            content.assign(content.size(), std::byte{0});
          } else {
            std::fill_n(content.begin(), kBlock / 2, std::byte{0});
          }
          const Bytes frame =
              ZeroRunFrame(content, 7, repeat_codes, repeat_codes && values % 2 == 0, level);
          EXPECT_EQ(CheckContent(frame, 2, content), Verdict::kAccepted);
          seen.merge(Modes(frame));
        }
      }
    }
  }
  // The same literals and lengths over and over.
  Bytes even(kBlock);
  for (std::size_t at = 0; at < even.size(); at += 64) even[at] = std::byte{1};
  std::vector<ZSTD_Sequence> sequences(100,
                                       {.offset = 1, .litLength = 70, .matchLength = 30, .rep = 0});
  sequences.push_back({.offset = 0, .litLength = 0, .matchLength = 0, .rep = 0});
  const FrameBuilder same_offsets = FrameBuilder()
                                        .Compressed(false, {2 << 3, 0, 0, 2, 0x54, 1, 2, 0, 0x10})
                                        .Compressed(true, {2 << 3, 0, 0, 2, 0x74, 1, 0, 0x10});
  for (const Bytes& frame :
       {ZeroRunFrame(even, 7, false, false), SequenceFrame(Bytes(10000), sequences, false, 1),
        same_offsets.frame}) {
    EXPECT_EQ(Check(frame, 1), Verdict::kAccepted);
    seen.merge(Modes(frame));
  }
  for (const char* kind : {"literals", "LL", "OF", "ML"}) {
    for (int mode = 0; mode < (kind[0] == 'l' ? 5 : 4); ++mode) {
      const std::string name = std::string(kind) + " " + std::to_string(mode);
      EXPECT_TRUE(seen.contains(name)) << name;
    }
  }
}

std::vector<Bytes> SmallFrames() {
  std::vector<Bytes> frames;
  frames.push_back(OwnFrame(SparseContent(kBlock, 0.0005, 2, 256, 1), 2));
  frames.push_back(OwnFrame(SparseContent(9000, 0.03, 2, 40, 2), 2));
  frames.push_back(OwnFrame(SparseContent(2 * kBlock + 600, 0.0004, 1, 4, 3), 1));
  frames.push_back(ZeroRunFrame(SparseContent(8000, 0.05, 2, 8, 4), 5, true, false));
  frames.push_back(ZeroRunFrame(SparseContent(3000, 0.03, 1, 256, 5), 5, true, true));
  frames.push_back(ZeroRunFrame(SparseContent(kBlock + 500, 0.0008, 1, 9, 6), 5, true, false, 5));
  frames.push_back(OwnFrame(SparseContent(30000, 0.03, 2, 256, 8), 2));
  frames.push_back(LibraryFrame(SparseContent(3000, 0.01, 1, 256, 7), 3));
  frames.push_back(LibraryFrame(Bytes(5000), 1));
  frames.push_back(LibraryFrame(Bytes(300), 1, false));
  frames.push_back(FrameBuilder()
                       .Raw(false, {0, 7})
                       .Repeated(false, 6, 9)
                       .Repeated(false, 8, 0)
                       .Compressed(true, {0x10, 5, 0, 1, 0x54, 0, 2, 0, 1})
                       .frame);
  return frames;
}

TEST(SparseFrameTest, EveryBitFlipIsJudgedAsByTheLibrary) {
  std::size_t counts[3] = {};
  for (const Bytes& original : SmallFrames()) {
    Bytes frame = original;
    for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
      const auto flip = static_cast<std::byte>(1 << bit % 8);
      frame[bit / 8] ^= flip;
      ++counts[static_cast<int>(Check(frame, 1 + bit / 8 % 2))];
      frame[bit / 8] ^= flip;
      ASSERT_FALSE(HasFailure()) << "bit " << bit;
    }
  }
  for (const std::size_t count : counts) EXPECT_GT(count, 0U);
}

TEST(SparseFrameTest, EveryTruncationIsAnError) {
  for (const Bytes& frame : SmallFrames()) {
    for (std::size_t size = 0; size < frame.size(); ++size) {
      ASSERT_NE(Check(ByteSpan(frame).first(size), 1), Verdict::kAccepted) << size;
      ASSERT_FALSE(HasFailure()) << size;
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    ASSERT_NE(Check(longer, 1), Verdict::kAccepted);
  }
}

RC_GTEST_PROP(SparseFrameProperty, DamageIsJudgedAsByTheLibrary, ()) {
  static const std::vector<Bytes> frames = SmallFrames();
  Bytes frame = *rc::gen::elementOf(frames);
  const std::size_t damages = *rc::gen::inRange(1, 6);
  for (std::size_t i = 0; i < damages; ++i) {
    // Rather in the tables than in the streams.
    const std::size_t at =
        *rc::gen::inRange<std::size_t>(0, *rc::gen::element<std::size_t>(40, frame.size()));
    frame[std::min(at, frame.size() - 1)] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
  }
  Check(frame, *rc::gen::element<std::size_t>(1, 2));
  RC_ASSERT_FALSE(testing::Test::HasFailure());
}

TEST(SparseFrameTest, ReadsBlocksMadeByHand) {
  // Raw, repeated and empty blocks.
  EXPECT_EQ(Check(FrameBuilder().Raw(true, {1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 4}).frame, 2),
            Verdict::kAccepted);
  EXPECT_EQ(
      Check(FrameBuilder().Raw(false, {}).Repeated(false, kBlock, 0).Repeated(true, 7, 5).frame, 2),
      Verdict::kAccepted);
  EXPECT_EQ(Check(FrameBuilder().Repeated(false, kBlock, 200).Repeated(true, 0, 5).frame, 1),
            Verdict::kAccepted);
  EXPECT_EQ(Check(FrameBuilder().Raw(true, {}).frame, 1), Verdict::kAccepted);
  // An odd block is fine as the last one, or with units of one byte.
  const Bytes odd = FrameBuilder().Raw(false, {1, 2, 3}).Raw(true, {4}).frame;
  EXPECT_EQ(Check(odd, 1), Verdict::kAccepted);
  EXPECT_EQ(Check(odd, 2), Verdict::kNotSparse);
  // Too large for a block.
  EXPECT_NE(Check(FrameBuilder().Repeated(true, kBlock + 1, 0).frame, 1), Verdict::kAccepted);
  EXPECT_EQ(Check(FrameBuilder().Head(true, 3, 0).frame, 1), Verdict::kCorrupt);
}

TEST(SparseFrameTest, MatchesMustRepeatAZero) {
  // Blocks of a few literals, then sequences that all have the same codes: of the literal length,
  // of the offset (0: the last one, 2: one of four, which two bits choose) and of the match length.
  // The last byte holds the bits, below an end mark. Sequences of one literal each.
  EXPECT_EQ(Check(FrameBuilder().Compressed(true, {2 << 3, 0, 0, 2, 0x54, 1, 0, 0, 1}).frame, 1),
            Verdict::kAccepted);
  EXPECT_EQ(Check(FrameBuilder().Compressed(true, {2 << 3, 0, 0, 2, 0x54, 1, 2, 0, 0x10}).frame, 1),
            Verdict::kAccepted);
  // The literal before a match is not zero.
  EXPECT_EQ(Check(FrameBuilder().Compressed(true, {2 << 3, 0, 9, 2, 0x54, 1, 0, 0, 1}).frame, 1),
            Verdict::kNotSparse);
  // Offset 2.
  EXPECT_EQ(Check(FrameBuilder().Compressed(true, {2 << 3, 0, 0, 2, 0x54, 1, 2, 0, 0x14}).frame, 1),
            Verdict::kNotSparse);
  // Without literals, code 0 is the offset before the last: 4, until offset 1 has been used twice.
  FrameBuilder history;
  history.Repeated(false, 8, 0);
  EXPECT_EQ(Check(FrameBuilder(history).Compressed(true, {0, 1, 0x54, 0, 0, 0, 1}).frame, 1),
            Verdict::kNotSparse);
  history.Compressed(false, {2 << 3, 0, 0, 2, 0x54, 1, 2, 0, 0x10});
  const Verdict after =
      Check(FrameBuilder(history).Compressed(true, {0, 1, 0x54, 0, 0, 0, 1}).frame, 1);
  EXPECT_NE(after, Verdict::kCorrupt);
  // Without literals at the start: of the frame, after a zero, and after something else.
  const auto start = [](FrameBuilder builder) {
    return builder.Compressed(true, {0, 1, 0x54, 0, 2, 0, 4}).frame;
  };
  EXPECT_EQ(Check(start(FrameBuilder()), 1), Verdict::kNotSparse);
  EXPECT_EQ(Check(start(FrameBuilder().Repeated(false, 3, 0)), 1), Verdict::kAccepted);
  EXPECT_EQ(Check(start(FrameBuilder().Raw(false, {5, 0})), 1), Verdict::kAccepted);
  EXPECT_EQ(Check(start(FrameBuilder().Raw(false, {0, 5})), 1), Verdict::kNotSparse);
  EXPECT_EQ(Check(start(FrameBuilder().Repeated(false, 4, 5)), 1), Verdict::kNotSparse);
}

TEST(SparseFrameTest, ContentSizeIsChecked) {
  EXPECT_EQ(Check(FrameBuilder(6).Repeated(false, 4, 0).Raw(true, {1, 2}).frame, 2),
            Verdict::kAccepted);
  EXPECT_EQ(Check(FrameBuilder(5).Repeated(false, 4, 0).Raw(true, {1, 2}).frame, 2),
            Verdict::kCorrupt);
  EXPECT_EQ(Check(FrameBuilder(7).Repeated(false, 4, 0).Raw(true, {1, 2}).frame, 2),
            Verdict::kCorrupt);
  const auto reader = SparseFrameReader::Open(FrameBuilder().Raw(true, {}).frame);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(reader->content_bytes(), SparseFrameReader::kUnknown);
}

TEST(SparseFrameTest, LeavesUnusualFramesToTheLibrary) {
  const Bytes plain = FrameBuilder(3).Raw(true, {1, 2, 3}).frame;
  ASSERT_TRUE(SparseFrameReader::Open(plain).has_value());
  for (const int flag : {1, 2, 3, 4, 8, 16}) {  // dictionary, checksum, reserved, unused
    Bytes frame = plain;
    frame[4] |= static_cast<std::byte>(flag);
    EXPECT_FALSE(SparseFrameReader::Open(frame).has_value()) << flag;
  }
  Bytes large_window = plain;
  large_window[5] = std::byte{18 << 3};
  EXPECT_FALSE(SparseFrameReader::Open(large_window).has_value());
  const auto skippable = base::AsBytes(std::string_view("\x50\x2a\x4d\x18\x02\x00\x00\x00xx", 10));
  EXPECT_FALSE(SparseFrameReader::Open(skippable).has_value());
  EXPECT_FALSE(SparseFrameReader::Open({}).has_value());
}

TEST(SparseFrameTest, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(ReadSparse(FrameBuilder().Raw(false, {1}).frame, 1).error,
            "the zstd frame is truncated: no last block");
  EXPECT_EQ(ReadSparse(FrameBuilder().Raw(true, {1}).Append({9}).frame, 1).error,
            "1 bytes follow the zstd frame");
  EXPECT_EQ(ReadSparse(FrameBuilder().Compressed(true, {0x13, 0x40, 0, 1, 0}).frame, 1).error,
            "literals: no Huffman table before");
  EXPECT_EQ(ReadSparse(FrameBuilder().Compressed(true, {0, 1, 0x54, 36, 0, 0, 1}).frame, 1).error,
            "literal length table: bad code");
}

}  // namespace
}  // namespace syncline::delta
