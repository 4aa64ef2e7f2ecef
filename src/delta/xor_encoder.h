// Makes xor frames: finds the difference of two tensor images and writes it as one standard zstd
// frame.
//
// How it is faster and smaller than compressing the xor image: the image is nearly all zeros, and
// where they are is known once the images have been compared. So no match finder runs. Each run of
// zeros becomes one zstd sequence whose match has offset 1 (the zero byte before it), and only the
// rest are literals; zstd's entropy coder does what remains. All offsets being 1, the decoder's
// history of offsets never changes from its initial state, so pieces that were encoded on their own
// can be put one after the other inside one frame: a tensor is encoded in parallel, in bounded
// memory, and any zstd decoder reads the result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "delta/changed_lines.h"
#include "tensor/dtype.h"

namespace syncline::delta {

// A tensor is cut into pieces of this size (the last may be shorter); a multiple of the 128 KiB of
// a zstd block.
inline constexpr std::size_t kXorPieceBytes = std::size_t{512} * 1024;

struct XorPiece {
  std::vector<std::byte> blocks;  // zstd blocks, none marked as the last one
  std::size_t last_block = 0;     // where the header of the last one stands in `blocks`
  std::uint64_t changed_elements = 0;
};

// One thread at a time; keeps its buffers between calls.
class XorEncoder {
 public:
  XorEncoder();
  ~XorEncoder();
  XorEncoder(XorEncoder&&) noexcept;

  // Encodes tensor bytes [offset, offset + size) given as two images of that range, at most
  // kXorPieceBytes, and marks what differs.
  base::Result<XorPiece> Encode(base::ByteSpan old_bytes, base::ByteSpan new_bytes,
                                std::uint64_t offset, tensor::Dtype dtype, ChangedLines& lines);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The frame of a whole tensor (at least one byte) from its pieces in order.
std::vector<std::byte> AssembleXorFrame(std::uint64_t tensor_bytes,
                                        std::span<const XorPiece> pieces);

}  // namespace syncline::delta
