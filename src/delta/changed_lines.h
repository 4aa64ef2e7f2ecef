// Which lines of a tensor a difference has touched: one bit for 128 bytes (two cache lines, which
// processors fetch together). A baseline is brought up to date by copying these lines alone.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace syncline::delta {

// Different threads may mark and copy bytes of different kBlockBytes blocks at the same time.
class ChangedLines {
 public:
  static constexpr std::size_t kLineBytes = 128;

  ChangedLines() = default;
  explicit ChangedLines(std::uint64_t tensor_bytes)
      : words_((tensor_bytes + kWordBytes - 1) / kWordBytes) {}

  void Mark(std::uint64_t byte) {
    words_[byte / kWordBytes] |= std::uint64_t{1} << (byte / kLineBytes % 64);
  }

  // Marks by a mask of units (tensor/unit_mask.h) whose words cover `bytes_per_word` bytes each,
  // the first one from `offset` on.
  void MarkWords(const std::uint64_t* mask, std::size_t words, std::uint64_t offset,
                 std::size_t bytes_per_word) {
    for (std::size_t i = 0; i < words; ++i) {
      if (mask[i] == 0) continue;
      for (std::size_t byte = 0; byte < bytes_per_word; byte += kLineBytes) {
        Mark(offset + i * bytes_per_word + byte);
      }
    }
  }

  // Copies the marked lines of [begin, end) from one image of the tensor to another; `begin` is a
  // multiple of kBlockBytes.
  void Copy(base::ByteSpan from, base::MutableByteSpan to, std::uint64_t begin,
            std::uint64_t end) const {
    for (std::uint64_t word = begin / kWordBytes; word * kWordBytes < end; ++word) {
      for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        const std::uint64_t line =
            word * kWordBytes + static_cast<std::uint64_t>(std::countr_zero(bits)) * kLineBytes;
        if (line >= end) return;  // a word of units may end before its last line
        const std::uint64_t size = line + kLineBytes < end ? kLineBytes : end - line;
        std::memcpy(to.data() + line, from.data() + line, size);
      }
    }
  }

 private:
  static constexpr std::size_t kWordBytes = 64 * kLineBytes;
  std::vector<std::uint64_t> words_;
};

}  // namespace syncline::delta
