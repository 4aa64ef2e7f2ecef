// Layout of a frame (RFC 8878): magic number, descriptor, window descriptor, content size; then blocks, each with a header of three bytes: bit 0
// says that it is the last, bits 1–2 its type (0 raw, 1 one byte repeated, 2 compressed), the rest its size.
//
// Encoding of a piece:
// 1. Compare the images block by block (128 KiB) into the xor image, collecting sequences.
// 2. A block without a difference becomes a "one byte repeated" block of four bytes. (Not the first block of a frame: old decoders of the zstd
//    command line refuse that.)
// 3. Each run of other blocks goes through ZSTD_compressSequences at once; of the frame that comes back the header is dropped and the blocks
//    are kept, the "last" mark cleared.
// 4. AssembleXorFrame writes one frame header and sets the mark on the very last block.
//
// Invariant that makes 3 legal: a piece starts with the decoder's history of offsets at its initial {1, 4, 8} and leaves it so, since every
// match has offset 1, is preceded by a literal, and is therefore coded as "the same offset as last time".
#include "delta/xor_encoder.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_compressSequences; in the shared library since 1.5.0
#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <bit>

#include "delta/words.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::Result;
using base::Status;

constexpr std::size_t kZstdBlock = ZSTD_BLOCKSIZE_MAX;
constexpr int kWindowLog = 17;
// A run of zeros shorter than this stays among the literals. At least 7, so that no run inside one 8-byte word has to be looked for.
constexpr std::size_t kMinRun = 7;

struct BlockHeader {
  std::uint32_t value;

  static BlockHeader At(const std::byte* at) {
    return {static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8 |
            static_cast<std::uint32_t>(at[2]) << 16};
  }
  bool last() const { return (value & 1) != 0; }
  // Bytes of the block after its header.
  std::size_t body() const { return (value >> 1 & 3) == 1 ? 1 : value >> 3; }
};

// Turns the differing bytes of one block, seen in ascending order, into sequences.
class Sequencer {
 public:
  explicit Sequencer(std::vector<ZSTD_Sequence>& sequences) : sequences_(sequences) {}

  // The bytes in [first, end) hold a difference at both ends; all between the previous call's end and `first` are equal.
  void Add(std::size_t first, std::size_t end) {
    if (first - zeros_ >= kMinRun) Flush(first);
    zeros_ = end;
  }
  // The block ends at `size`.
  void Finish(std::size_t size) {
    if (size - zeros_ >= kMinRun) {
      Flush(size);
    }
    sequences_.push_back({.offset = 0,
                          .litLength = static_cast<unsigned>(size - literals_),
                          .matchLength = 0,
                          .rep = 0});
  }

 private:
  // The run [zeros_, end): its first byte is the last literal, the others are a match of it.
  void Flush(std::size_t end) {
    sequences_.push_back({.offset = 1,
                          .litLength = static_cast<unsigned>(zeros_ + 1 - literals_),
                          .matchLength = static_cast<unsigned>(end - zeros_ - 1),
                          .rep = 0});
    literals_ = end;
  }

  std::vector<ZSTD_Sequence>& sequences_;
  std::size_t literals_ = 0;  // where the literals begin that no sequence has yet
  std::size_t zeros_ = 0;     // end of the last differing byte
};

// Writes the xor of one block and its sequences; returns the number of differing units.
template <typename Unit>
std::uint64_t XorBlock(ByteSpan a, ByteSpan b, std::byte* out, std::uint64_t offset,
                       std::vector<ZSTD_Sequence>& sequences, ChangedLines& lines) {
  Sequencer sequencer(sequences);
  std::uint64_t changed = 0;
  const std::size_t size = a.size();
  const auto word = [&](std::size_t at, std::uint64_t x) {
    changed += NonZeroUnits<Unit>(x);
    lines.Mark(offset + at);
    sequencer.Add(at + static_cast<std::size_t>(std::countr_zero(x)) / 8,
                  at + 8 - static_cast<std::size_t>(std::countl_zero(x)) / 8);
  };
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    const std::uint64_t x0 = Load<std::uint64_t>(&a[at]) ^ Load<std::uint64_t>(&b[at]);
    const std::uint64_t x1 = Load<std::uint64_t>(&a[at + 8]) ^ Load<std::uint64_t>(&b[at + 8]);
    const std::uint64_t x2 = Load<std::uint64_t>(&a[at + 16]) ^ Load<std::uint64_t>(&b[at + 16]);
    const std::uint64_t x3 = Load<std::uint64_t>(&a[at + 24]) ^ Load<std::uint64_t>(&b[at + 24]);
    base::Store(out + at, x0);
    base::Store(out + at + 8, x1);
    base::Store(out + at + 16, x2);
    base::Store(out + at + 24, x3);
    if ((x0 | x1 | x2 | x3) == 0) continue;
    if (x0 != 0) word(at, x0);
    if (x1 != 0) word(at + 8, x1);
    if (x2 != 0) word(at + 16, x2);
    if (x3 != 0) word(at + 24, x3);
  }
  for (; at < size; at += 8) {
    const std::size_t rest = std::min<std::size_t>(8, size - at);
    const std::uint64_t x = LoadUpTo8(a.subspan(at, rest)) ^ LoadUpTo8(b.subspan(at, rest));
    std::memcpy(out + at, &x, rest);
    if (x != 0) word(at, x);
  }
  if (changed != 0) sequencer.Finish(size);
  return changed;
}

void AppendRepeatedZero(std::size_t size, XorPiece& piece) {
  piece.last_block = piece.blocks.size();
  const std::uint32_t header = static_cast<std::uint32_t>(size) << 3 | 1U << 1;
  for (const int shift : {0, 8, 16}) {
    piece.blocks.push_back(static_cast<std::byte>(header >> shift));
  }
  piece.blocks.push_back(std::byte{0});
}

}  // namespace

struct XorEncoder::State {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, Free> context{ZSTD_createCCtx()};
  std::vector<ZSTD_Sequence> sequences;
  std::vector<std::byte> image = std::vector<std::byte>(kXorPieceBytes);
  std::vector<std::byte> frame = std::vector<std::byte>(ZSTD_compressBound(kXorPieceBytes));

  Status AppendCompressed(std::size_t begin, std::size_t end, XorPiece& piece);
};

XorEncoder::XorEncoder() : state_(std::make_unique<State>()) {
  ZSTD_CCtx* context = state_->context.get();
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    ZSTD_CCtx_setParameter(context, parameter, value);
  };
  set(ZSTD_c_compressionLevel, 1);
  set(ZSTD_c_windowLog, kWindowLog);
  set(ZSTD_c_hashLog, 6);  // tables of the match finder, which does not run
  set(ZSTD_c_blockDelimiters, ZSTD_sf_explicitBlockDelimiters);
  set(ZSTD_c_validateSequences, 0);
}
XorEncoder::~XorEncoder() = default;
XorEncoder::XorEncoder(XorEncoder&&) noexcept = default;

// Step 3: the blocks of image [begin, end), whose sequences are all that were collected since the last call.
Status XorEncoder::State::AppendCompressed(std::size_t begin, std::size_t end, XorPiece& piece) {
  if (begin == end) return {};
  const std::size_t size =
      ZSTD_compressSequences(context.get(), frame.data(), frame.size(), sequences.data(),
                             sequences.size(), image.data() + begin, end - begin);
  sequences.clear();
  const std::size_t head = ZSTD_isError(size) ? size : ZSTD_frameHeaderSize(frame.data(), size);
  if (ZSTD_isError(head)) {
    return Fail(Code::kInternal, fmt::format("zstd: {}", ZSTD_getErrorName(head)));
  }
  const std::size_t start = piece.blocks.size();
  piece.blocks.insert(piece.blocks.end(), frame.data() + head, frame.data() + size);
  std::size_t at = start;
  while (true) {
    const BlockHeader header = BlockHeader::At(&piece.blocks[at]);
    if (header.last()) break;
    at += 3 + header.body();
  }
  piece.blocks[at] &= std::byte{0xfe};
  piece.last_block = at;
  return {};
}

Result<XorPiece> XorEncoder::Encode(ByteSpan old_bytes, ByteSpan new_bytes, std::uint64_t offset,
                                    std::uint32_t unit_bytes, ChangedLines& lines) {
  const auto xor_block = unit_bytes == 1   ? XorBlock<std::uint8_t>
                         : unit_bytes == 2 ? XorBlock<std::uint16_t>
                                           : XorBlock<std::uint32_t>;
  XorPiece piece;
  std::size_t run = 0;  // where the blocks begin that were not written yet
  state_->sequences.clear();
  for (std::size_t at = 0; at < old_bytes.size(); at += kZstdBlock) {
    const std::size_t size = std::min(kZstdBlock, old_bytes.size() - at);
    const std::uint64_t changed =
        xor_block(old_bytes.subspan(at, size), new_bytes.subspan(at, size),
                  state_->image.data() + at, offset + at, state_->sequences, lines);
    piece.changed_units += changed;
    if (changed != 0) continue;
    if (offset + at == 0) {
      Sequencer(state_->sequences).Finish(size);
      continue;
    }
    SYNCLINE_TRY(state_->AppendCompressed(run, at, piece));
    AppendRepeatedZero(size, piece);
    run = at + size;
  }
  SYNCLINE_TRY(state_->AppendCompressed(run, old_bytes.size(), piece));
  return piece;
}

std::vector<std::byte> AssembleXorFrame(std::uint64_t tensor_bytes,
                                        std::span<const XorPiece> pieces) {
  constexpr std::uint32_t kMagic = 0xfd2fb528;
  constexpr auto kDescriptor = std::byte{3 << 6};  // content size in eight bytes; no checksum
  constexpr auto kWindow = std::byte{(kWindowLog - 10) << 3};
  std::vector<std::byte> frame(4 + 1 + 1 + 8);
  base::Store(frame.data(), kMagic);
  frame[4] = kDescriptor;
  frame[5] = kWindow;
  base::Store(frame.data() + 6, tensor_bytes);
  std::size_t size = frame.size();
  for (const XorPiece& piece : pieces) size += piece.blocks.size();
  frame.reserve(size);
  std::size_t last_block = 0;
  for (const XorPiece& piece : pieces) {
    last_block = frame.size() + piece.last_block;
    frame.insert(frame.end(), piece.blocks.begin(), piece.blocks.end());
  }
  frame[last_block] |= std::byte{1};
  return frame;
}

}  // namespace syncline::delta
