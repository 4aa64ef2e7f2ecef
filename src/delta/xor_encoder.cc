// Layout of a frame (RFC 8878): magic number, descriptor, window descriptor, content size; then
// blocks, each with a header of three bytes: bit 0 says that it is the last, bits 1–2 its type (0
// raw, 1 one byte repeated, 2 compressed), the rest its size.
//
// Encoding of a piece:
// 1. Compare the images block by block (128 KiB) into the xor image, collecting sequences.
// 2. A block without a difference becomes a "one byte repeated" block of four bytes. (Not the first
//    block of a frame: old decoders of the zstd command line refuse that.)
// 3. Each run of other blocks goes through ZSTD_compressSequences at once; of the frame that comes
//    back the header is dropped and the blocks are kept, the "last" mark cleared.
// 4. AssembleXorFrame writes one frame header and sets the mark on the very last block.
//
// Invariant that makes 3 legal: a piece starts with the decoder's history of offsets at its initial
// {1, 4, 8} and leaves it so, since every match has offset 1, is preceded by a literal, and is
// therefore coded as "the same offset as last time".
#include "delta/xor_encoder.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_compressSequences; in the shared library since 1.5.0
#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <bit>

#include "tensor/unit_mask.h"

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
// A run of zeros shorter than this stays among the literals. At least 7, so that no run inside one
// 8-byte word has to be looked for.
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
  explicit Sequencer(ZSTD_Sequence* out) : out_(out) {}

  // The bytes in [first, end) hold a difference at both ends; all between the previous call's end
  // and `first` are equal.
  void Add(std::size_t first, std::size_t end) {
    if (first - zeros_ >= kMinRun) Flush(first);
    zeros_ = end;
  }
  // The block ends at `size`. Returns the end of the sequences.
  ZSTD_Sequence* Finish(std::size_t size) {
    if (size - zeros_ >= kMinRun) Flush(size);
    *out_++ = {.offset = 0, .litLength = static_cast<unsigned>(size - literals_)};
    return out_;
  }

 private:
  // The run [zeros_, end): its first byte is the last literal, the others are a match of it.
  void Flush(std::size_t end) {
    *out_++ = {.offset = 1,
               .litLength = static_cast<unsigned>(zeros_ + 1 - literals_),
               .matchLength = static_cast<unsigned>(end - zeros_ - 1)};
    literals_ = end;
  }

  ZSTD_Sequence* out_;
  std::size_t literals_ = 0;  // where the literals begin that no sequence has yet
  std::size_t zeros_ = 0;     // end of the last differing byte
};

// A run takes at least kMinRun bytes and the differing byte before it; beside these there is the
// run at the start and the end of the block.
constexpr std::size_t kMaxSequences = kZstdBlock / (kMinRun + 1) + 2;

template <typename Unit>
ZSTD_Sequence* AppendSequences(const std::byte* image, std::size_t size, const std::uint64_t* mask,
                               ZSTD_Sequence* out) {
  Sequencer sequencer(out);
  tensor::ForEachSet(mask, tensor::MaskWords(size, sizeof(Unit)), [&](std::size_t unit) {
    const std::size_t at = unit * sizeof(Unit);
    if constexpr (sizeof(Unit) == 1) {
      sequencer.Add(at, at + 1);
    } else {
      const auto x = Load<std::uint16_t>(image + at);
      sequencer.Add(at + ((x & 0xff) == 0 ? 1 : 0), at + ((x >> 8) == 0 ? 1 : 2));
    }
  });
  return sequencer.Finish(size);
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
  std::vector<std::uint64_t> mask = std::vector<std::uint64_t>(kZstdBlock / 64);
  std::vector<ZSTD_Sequence> sequences =
      std::vector<ZSTD_Sequence>(kMaxSequences * kXorPieceBytes / kZstdBlock);
  std::size_t sequence_count = 0;
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
  set(ZSTD_c_searchForExternalRepcodes, ZSTD_ps_enable);  // offset 1 as "the same as last time"
}
XorEncoder::~XorEncoder() = default;
XorEncoder::XorEncoder(XorEncoder&&) noexcept = default;

// Step 3: the blocks of image [begin, end), whose sequences are all that were collected since the
// last call.
Status XorEncoder::State::AppendCompressed(std::size_t begin, std::size_t end, XorPiece& piece) {
  if (begin == end) return {};
  const std::size_t size =
      ZSTD_compressSequences(context.get(), frame.data(), frame.size(), sequences.data(),
                             sequence_count, image.data() + begin, end - begin);
  sequence_count = 0;
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
                                    tensor::Dtype dtype, ChangedLines& lines) {
  State& state = *state_;
  const std::size_t unit = UnitBytes(dtype);
  const auto append = unit == 1 ? AppendSequences<std::uint8_t> : AppendSequences<std::uint16_t>;
  XorPiece piece;
  std::size_t run = 0;  // where the blocks begin that were not written yet
  state.sequence_count = 0;
  for (std::size_t at = 0; at < old_bytes.size(); at += kZstdBlock) {
    const std::size_t size = std::min(kZstdBlock, old_bytes.size() - at);
    const std::size_t words = tensor::MaskWords(size, unit);
    std::byte* image = state.image.data() + at;
    tensor::XorWithMask(&old_bytes[at], &new_bytes[at], size, unit, image, state.mask.data());
    const std::uint64_t changed =
        tensor::CountElements(state.mask.data(), words, UnitsPerElement(dtype));
    if (changed == 0 && offset + at != 0) {
      SYNCLINE_TRY(state.AppendCompressed(run, at, piece));
      AppendRepeatedZero(size, piece);
      run = at + size;
      continue;
    }
    piece.changed_elements += changed;
    lines.MarkWords(state.mask.data(), words, offset + at, 64 * unit);
    ZSTD_Sequence* out = state.sequences.data() + state.sequence_count;
    state.sequence_count +=
        static_cast<std::size_t>(append(image, size, state.mask.data(), out) - out);
  }
  SYNCLINE_TRY(state.AppendCompressed(run, old_bytes.size(), piece));
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
