// The entropy decoders of the zstd format (RFC 8878, section 4): FSE tables and Huffman codes.
//
// Errors: kCorrupt is damage that every zstd decoder refuses. kIncompatible is anything about which
// decoders differ or that goes beyond the format's own limits; the caller leaves it to the library.
//
// Streams of bits are read from their end towards their beginning, a word of eight bytes at a time.
// The word may begin before the stream: kBytesBefore bytes in front of each must be readable; what
// they hold has no influence on any result.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::delta {

inline constexpr std::ptrdiff_t kBytesBefore = 16;

constexpr std::uint64_t LowBits(unsigned n) { return (std::uint64_t{1} << n) - 1; }

// Reads bits from the end of a stream. Refill before every 56 bits; check Overrun before every
// Refill whose stream may have come to its end.
class BackwardBits {
 public:
  // False if there is no stream in these bytes: none at all, or no bit that marks its end.
  bool Open(base::ByteSpan stream) {
    if (stream.empty() || stream.back() == std::byte{0}) return false;
    last_word_ = stream.data() + stream.size() - 8;
    size_ = 8 * stream.size();
    taken_ =
        static_cast<std::size_t>(std::countl_zero(static_cast<std::uint8_t>(stream.back()))) + 1;
    return true;
  }

  // More was taken than there was.
  bool Overrun() const { return taken_ > size_; }
  bool AtEnd() const { return taken_ == size_; }
  // Bits that were not taken; not after an overrun.
  std::size_t Left() const { return size_ - taken_; }

  void Refill() { bits_ = base::Load<std::uint64_t>(last_word_ - taken_ / 8) << (taken_ % 8); }
  // n <= 56
  std::uint64_t Take(unsigned n) {
    const std::uint64_t value = Peek(n, n);
    Skip(n);
    return value;
  }
  // The next n bits, which stay; n <= 56.
  std::uint64_t Next(unsigned n) const { return bits_ >> 1 >> (63 - n); }
  // The last n of the next `end` bits.
  std::uint64_t Peek(unsigned end, unsigned n) const { return bits_ >> (-end & 63) & LowBits(n); }
  // The next bits, the first one highest.
  std::uint64_t Raw() const { return bits_; }
  void Skip(unsigned n) {
    bits_ <<= n;
    taken_ += n;
  }

 private:
  const std::byte* last_word_ = nullptr;
  std::size_t size_ = 0;    // in bits, as the next
  std::size_t taken_ = 0;   // with the padding
  std::uint64_t bits_ = 0;  // the next bit is the highest; zeros come after those that there are
};

// The distribution that an FSE table is made from: how many of the 2^log states each symbol has;
// -1 is one state of a symbol rarer than that.
struct FseCounts {
  std::array<std::int16_t, 256> of;  // valid below `symbols`
  unsigned symbols = 0;
  unsigned log = 0;
};
inline constexpr unsigned kMaxFseLog = 9;

// Reads a distribution of symbols 0..max_symbol with log <= max_log <= kMaxFseLog; returns the
// bytes it takes.
base::Result<std::size_t> ReadFseCounts(base::ByteSpan from, unsigned max_symbol, unsigned max_log,
                                        FseCounts& counts);

// Writes the symbol of each state into `symbols`, which has room for 2^log.
void SpreadFseSymbols(const FseCounts& counts, std::uint8_t* symbols);

// Calls make(state, symbol, bits, base) for each state: the next state is `base` plus the next
// `bits` bits.
template <typename Make>
void ForEachFseState(const FseCounts& counts, const Make& make) {
  std::array<std::uint8_t, 1 << kMaxFseLog> symbols;
  std::array<std::uint16_t, 256> next;
  SpreadFseSymbols(counts, symbols.data());
  for (unsigned s = 0; s < counts.symbols; ++s) {
    next[s] = static_cast<std::uint16_t>(counts.of[s] < 0 ? 1 : counts.of[s]);
  }
  const unsigned size = 1U << counts.log;
  for (unsigned state = 0; state < size; ++state) {
    const unsigned symbol = symbols[state];
    const unsigned x = next[symbol]++;
    const unsigned bits = counts.log + 1 - static_cast<unsigned>(std::bit_width(x));
    make(state, symbol, bits, (x << bits) - size);
  }
}

// A Huffman code over bytes.
class HuffmanTable {
 public:
  static constexpr unsigned kLog = 11;  // longest code of the format

  // Reads the description of a code; returns the bytes it takes. After an error the table is void.
  base::Result<std::size_t> Read(base::ByteSpan from);
  // Decodes one stream into `size` bytes, or four (with the table of their sizes in front) if size
  // >= 6.
  base::Status DecodeOne(base::ByteSpan stream, std::byte* out, std::size_t size) const;
  base::Status DecodeFour(base::ByteSpan streams, std::byte* out, std::size_t size) const;

 private:
  // By the next kLog bits: length of the code, and its symbol times 256.
  std::array<std::uint16_t, (1 << kLog) + 3> cells_;
};

}  // namespace syncline::delta
