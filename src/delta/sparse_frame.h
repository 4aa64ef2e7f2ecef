// Reads zstd frames (RFC 8878) whose content is nearly all zeros without ever writing the zeros:
// the time goes by what is not zero.
//
// That works where every match of a frame repeats a zero byte, as in the frames of XorEncoder.
// Whatever else a frame may hold (other matches, checksums, dictionaries, things that decoders
// disagree about) is left to the library: the reader says so and the caller starts again. What the
// reader accepts is bit for bit what the library makes of the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::delta {

class SparseFrameReader {
 public:
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::size_t kMaxBlock = std::size_t{128} * 1024;
  // Sizes of image and mask; a little more than a block, so that whole words can be written
  // everywhere.
  static constexpr std::size_t kImageBytes = kMaxBlock + 8;
  static constexpr std::size_t kMaskWords = kMaxBlock / 64 + 1;

  // `frame` must stay valid. Nothing if it does not begin like a frame that this reader handles.
  static std::optional<SparseFrameReader> Open(base::ByteSpan frame);

  ~SparseFrameReader();
  SparseFrameReader(SparseFrameReader&&) noexcept;
  SparseFrameReader& operator=(SparseFrameReader&&) noexcept;

  // kUnknown where the frame does not say.
  std::uint64_t content_bytes() const;

  enum class Outcome : std::uint8_t {
    kBlock,  // a block was decoded
    kEnd,  // there is none: the frame ended, the bytes it was given in with it, and its content has
           // the size that it said
    kNotSparse,  // this frame is for the library, from its start; image and mask may hold anything
  };

  // Decodes the next block into image[0, size) and mask; size may be 0. The image must have
  // kMaxBlock bytes and the mask a bit for each unit of unit_bytes (1 or 2) of it, all zero: of the
  // image only what is not zero is changed, and bit u % 64 of mask[u / 64] is set if unit u is not
  // zero. Blocks before the last have an even size if unit_bytes is 2. After kCorrupt or kNotSparse
  // the reader is of no more use.
  base::Result<Outcome> NextBlock(std::byte* image, std::uint64_t* mask, std::size_t unit_bytes,
                                  std::size_t& size);

 private:
  struct State;
  explicit SparseFrameReader(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace syncline::delta
