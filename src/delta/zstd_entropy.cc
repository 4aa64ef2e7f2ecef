#include "delta/zstd_entropy.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::Result;
using base::Status;

constexpr unsigned kMaxWeights = 255;  // the last symbol's weight is not written
constexpr unsigned kMaxWeight = 12;
constexpr unsigned kWeightLog = 6;
constexpr std::size_t kBitsOf8Weights = std::size_t{8} * kWeightLog;

// Little-endian bits from the front of a span; zeros follow its end.
class ForwardBits {
 public:
  explicit ForwardBits(ByteSpan from) : from_(from) {}

  // The next 25 bits or more.
  std::uint32_t Peek() const {
    const std::size_t byte = at_ / 8;
    if (byte + 4 <= from_.size()) return Load<std::uint32_t>(from_.data() + byte) >> (at_ % 8);
    std::uint32_t value = 0;
    for (std::size_t i = byte; i < from_.size(); ++i) {
      value |= static_cast<std::uint32_t>(from_[i]) << (8 * (i - byte));
    }
    return value >> (at_ % 8);
  }
  void Skip(unsigned n) { at_ += n; }
  // Bytes begun; more than there are after reading past the end.
  std::size_t Bytes() const { return (at_ + 7) / 8; }
  bool Overrun() const { return Bytes() > from_.size(); }

 private:
  ByteSpan from_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::size_t> ReadFseCounts(ByteSpan from, unsigned max_symbol, unsigned max_log,
                                  FseCounts& counts) {
  if (from.empty()) return Fail(Code::kCorrupt, "FSE table: missing");
  ForwardBits bits(from);
  counts.log = (bits.Peek() & 15) + 5;
  bits.Skip(4);
  if (counts.log > max_log) {
    return Fail(Code::kCorrupt,
                fmt::format("FSE table: log of its size is {}, at most {}", counts.log, max_log));
  }
  unsigned symbol = 0;
  // States that no symbol has yet.
  unsigned remaining = 1U << counts.log;
  while (remaining > 0) {
    if (symbol > max_symbol || bits.Overrun()) break;
    // A value 0..remaining+1, of which the lowest take one bit less than the others.
    const unsigned half = std::bit_floor(remaining + 1);
    const auto width = static_cast<unsigned>(std::bit_width(half));
    const unsigned short_values = 2 * half - 2 - remaining;
    const std::uint32_t next = bits.Peek();
    unsigned value = next & (half - 1);
    if (value < short_values) {
      bits.Skip(width - 1);
    } else {
      value = next & (2 * half - 1);
      if (value >= half) value -= short_values;
      bits.Skip(width);
    }
    const int count = static_cast<int>(value) - 1;
    counts.of[symbol++] = static_cast<std::int16_t>(count);
    remaining -= count < 0 ? 1 : static_cast<unsigned>(count);
    if (count != 0) continue;
    // How many more symbols have no state, in steps of at most three.
    unsigned step = 3;
    while (step == 3 && symbol <= max_symbol && !bits.Overrun()) {
      step = bits.Peek() & 3;
      bits.Skip(2);
      for (unsigned i = 0; i < step && symbol <= max_symbol; ++i) counts.of[symbol++] = 0;
    }
  }
  if (bits.Overrun()) return Fail(Code::kIncompatible, "FSE table: truncated");
  if (remaining > 0) {
    return Fail(Code::kCorrupt, fmt::format("FSE table: {} states are left after symbol {}",
                                            remaining, max_symbol));
  }
  counts.symbols = symbol;
  return bits.Bytes();
}

void SpreadFseSymbols(const FseCounts& counts, std::uint8_t* symbols) {
  const unsigned size = 1U << counts.log;
  // The symbols in order, each as often as it has states; first in whole words, of which the next
  // symbol takes back what is too much.
  std::array<std::uint8_t, (1 << kMaxFseLog) + 8> in_order;
  unsigned end = 0;
  unsigned rare = size;  // the rare symbols take the last states
  for (unsigned s = 0; s < counts.symbols; ++s) {
    const int count = counts.of[s];
    if (count < 0) {
      --rare;
      continue;
    }
    const std::uint64_t word = std::uint64_t{s} * 0x0101'0101'0101'0101;
    for (int i = 0; i < count; i += 8)
      std::memcpy(&in_order[end + static_cast<unsigned>(i)], &word, 8);
    end += static_cast<unsigned>(count);
  }
  const unsigned step = size / 2 + size / 8 + 3;
  unsigned at = 0;
  for (unsigned i = 0, state = 0; state < size; ++state) {
    symbols[at] = in_order[i];
    i += at < rare ? 1 : 0;
    at = (at + step) & (size - 1);
  }
  if (rare == size) return;
  unsigned state = size;
  for (unsigned s = 0; s < counts.symbols; ++s) {
    if (counts.of[s] < 0) symbols[--state] = static_cast<std::uint8_t>(s);
  }
}

namespace {

using Weights = std::array<std::uint8_t, kMaxWeights + 1>;

// Two states take turns; the stream ends with the first that cannot be updated any more, and the
// other gives the last weight. Returns how many there are.
Result<unsigned> ReadFseWeights(ByteSpan from, Weights& weights) {
  FseCounts counts;
  SYNCLINE_ASSIGN(const std::size_t head, ReadFseCounts(from, 255, kWeightLog, counts));
  struct Cell {
    std::uint8_t symbol;
    std::uint8_t bits;
    std::uint16_t base;
  };
  std::array<Cell, 1 << kWeightLog> cells;
  ForEachFseState(counts, [&](unsigned state, unsigned symbol, unsigned bits, unsigned base) {
    cells[state] = {static_cast<std::uint8_t>(symbol), static_cast<std::uint8_t>(bits),
                    static_cast<std::uint16_t>(base)};
  });
  BackwardBits bits;
  if (!bits.Open(from.subspan(head))) {
    return Fail(Code::kCorrupt, "Huffman table: the weights have no end mark");
  }
  bits.Refill();
  Cell a = cells[bits.Take(counts.log)];
  Cell b = cells[bits.Take(counts.log)];
  if (bits.Overrun()) return Fail(Code::kIncompatible, "Huffman table: the weights are truncated");
  unsigned count = 0;
  while (bits.Left() >= kBitsOf8Weights && count + 8 < kMaxWeights) {
    bits.Refill();
    for (int i = 0; i < 4; ++i) {
      weights[count++] = a.symbol;
      weights[count++] = b.symbol;
      const unsigned both = a.bits + b.bits;
      const std::uint64_t next_a = bits.Peek(a.bits, a.bits);
      const std::uint64_t next_b = bits.Peek(both, b.bits);
      a = cells[a.base + next_a];
      b = cells[b.base + next_b];
      bits.Skip(both);
    }
  }
  while (count + 1 < kMaxWeights) {
    bits.Refill();
    weights[count++] = a.symbol;
    a = cells[a.base + bits.Take(a.bits)];
    if (bits.Overrun()) {
      weights[count++] = b.symbol;
      return count;
    }
    std::swap(a, b);
  }
  return Fail(Code::kCorrupt, fmt::format("Huffman table: more than {} weights", kMaxWeights));
}

unsigned ReadPlainWeights(ByteSpan from, unsigned count, Weights& weights) {
  for (unsigned i = 0; i < count; ++i) {
    const auto pair = static_cast<unsigned>(from[i / 2]);
    weights[i] = static_cast<std::uint8_t>(i % 2 == 0 ? pair >> 4 : pair & 15);
  }
  return count;
}

}  // namespace

Result<std::size_t> HuffmanTable::Read(ByteSpan from) {
  if (from.empty()) return Fail(Code::kCorrupt, "Huffman table: missing");
  const auto head = static_cast<unsigned>(from[0]);
  const std::size_t bytes = head < 128 ? head : (head - 126) / 2;
  if (1 + bytes > from.size()) return Fail(Code::kCorrupt, "Huffman table: truncated");
  const ByteSpan body = from.subspan(1, bytes);
  Weights weights = {};
  unsigned symbols = 0;
  if (head < 128) {
    SYNCLINE_ASSIGN(symbols, ReadFseWeights(body, weights));
  } else {
    symbols = ReadPlainWeights(body, head - 127, weights);
  }

  // A weight w > 0 stands for 2^(w-1) of the 2^log cells; the last symbol has those that are left.
  if (std::ranges::max(weights) > kMaxWeight) {
    return Fail(Code::kCorrupt, fmt::format("Huffman table: a weight above {}", kMaxWeight));
  }
  // Each quarter of the symbols is counted by itself, because a counter that changes all the time
  // keeps the machine waiting.
  constexpr unsigned kQuarter = 64;
  std::array<std::array<unsigned, kMaxWeight + 1>, 4> quarters = {};
  for (unsigned s = 0; s < kQuarter; ++s) {
    for (unsigned q = 0; q < 4; ++q) ++quarters[q][weights[q * kQuarter + s]];
  }
  std::array<unsigned, kMaxWeight + 1> of_weight;
  for (unsigned w = 0; w <= kMaxWeight; ++w) {
    of_weight[w] = quarters[0][w] + quarters[1][w] + quarters[2][w] + quarters[3][w];
  }
  unsigned total = 0;
  for (unsigned w = 1; w <= kMaxWeight; ++w) total += of_weight[w] << (w - 1);
  if (total == 0) return Fail(Code::kCorrupt, "Huffman table: all weights are zero");
  const auto log = static_cast<unsigned>(std::bit_width(total));
  if (log > kMaxWeight) return Fail(Code::kCorrupt, "Huffman table: too many long codes");
  const unsigned rest = (1U << log) - total;
  if (!std::has_single_bit(rest)) {
    return Fail(Code::kCorrupt, "Huffman table: the weights do not add up to a power of two");
  }
  const auto last_weight = static_cast<std::uint8_t>(std::bit_width(rest));
  weights[symbols] = last_weight;
  --quarters[symbols / kQuarter][0];
  --of_weight[0];
  ++quarters[symbols / kQuarter][last_weight];
  ++of_weight[last_weight];
  if (of_weight[1] < 2 || of_weight[1] % 2 != 0) {
    return Fail(Code::kCorrupt, "Huffman table: the longest codes do not come in pairs");
  }
  if (log > kLog) {
    return Fail(Code::kIncompatible, fmt::format("Huffman table: codes of {} bits", log));
  }

  // Symbols by ascending weight, which is the order of their cells.
  std::array<std::uint8_t, 256> sorted;
  unsigned sum = 0;
  for (unsigned w = 0; w <= log; ++w) {
    for (auto& quarter : quarters) sum += std::exchange(quarter[w], sum);
  }
  for (unsigned s = 0; s < kQuarter; ++s) {
    for (unsigned q = 0; q < 4; ++q) {
      const unsigned symbol = q * kQuarter + s;
      sorted[quarters[q][weights[symbol]]++] = static_cast<std::uint8_t>(symbol);
    }
  }
  std::uint16_t* cell = cells_.data();
  const std::uint8_t* symbol = sorted.data() + of_weight[0];
  for (unsigned w = 1; w <= log; ++w) {
    const std::ptrdiff_t size = std::ptrdiff_t{1} << (w - 1 + kLog - log);
    for (unsigned i = 0; i < of_weight[w]; ++i, ++symbol, cell += size) {
      // Four cells at a time; those that are too much belong to what comes next, or are behind the
      // table.
      const std::uint64_t cell_value = unsigned{*symbol} << 8 | (log + 1 - w);
      const std::uint64_t four = cell_value * 0x0001'0001'0001'0001;
      for (std::ptrdiff_t k = 0; k < size; k += 4) std::memcpy(cell + k, &four, 8);
    }
  }
  return 1 + bytes;
}

namespace {

// One stream of codes. The lowest set bit of bits_ is a mark; as many bits as stand below it were
// taken since the word was loaded.
class CodeStream {
 public:
  bool Open(ByteSpan stream) {
    if (stream.empty() || stream.back() == std::byte{0}) return false;
    begin_ = stream.data();
    word_ = begin_ + stream.size() - 8;
    const auto last = static_cast<std::uint8_t>(stream.back());
    bits_ = (Load<std::uint64_t>(word_) | 1) << (std::countl_zero(last) + 1);
    return true;
  }
  bool Overrun() const { return word_ < begin_ - 8; }
  bool AtEnd() const { return (word_ + 8 - begin_) * 8 == std::countr_zero(bits_); }
  // At least 56 bits are there afterwards.
  void Refill() {
    const int taken = std::countr_zero(bits_);
    word_ -= taken >> 3;
    bits_ = (Load<std::uint64_t>(word_) | 1) << (taken & 7);
  }
  std::byte Next(const std::uint16_t* cells) {
    const unsigned cell = cells[bits_ >> (64 - HuffmanTable::kLog)];
    bits_ <<= cell & 63;
    return static_cast<std::byte>(cell >> 8);
  }

 private:
  const std::byte* begin_ = nullptr;
  const std::byte* word_ = nullptr;
  std::uint64_t bits_ = 0;
};

// Not corrupt: some decoders do not mind.
std::unexpected<base::Error> NoEndMark() {
  return Fail(Code::kIncompatible, "Huffman stream: no end mark");
}

constexpr std::size_t kCodesPerRefill = 56 / HuffmanTable::kLog;

Status DecodeRest(CodeStream stream, const std::uint16_t* cells, std::byte* out, std::byte* end) {
  while (out < end && !stream.Overrun()) {
    stream.Refill();
    for (std::size_t i = 0; i < kCodesPerRefill && out < end; ++i) *out++ = stream.Next(cells);
  }
  if (out == end && stream.AtEnd()) return {};
  // Not corrupt: some decoders look at two codes at once and do not see one that is too many.
  return Fail(Code::kIncompatible, "Huffman stream: ends elsewhere than its last code");
}

// Decodes an equal number of codes of each stream, at most `size`, to out, out + stride and so on;
// returns the number.
[[gnu::always_inline]] inline std::size_t DecodeInStep(CodeStream (&streams)[4],
                                                       const std::uint16_t* cells, std::byte* out,
                                                       std::size_t stride, std::size_t size) {
  CodeStream a = streams[0], b = streams[1], c = streams[2], d = streams[3];
  std::byte* at = out;
  std::byte* const end = out + size / kCodesPerRefill * kCodesPerRefill;
  for (; at < end; at += kCodesPerRefill) {
    if (a.Overrun() || b.Overrun() || c.Overrun() || d.Overrun()) break;
    a.Refill();
    b.Refill();
    c.Refill();
    d.Refill();
#pragma GCC unroll 5
    for (std::size_t i = 0; i < kCodesPerRefill; ++i) {
      at[i] = a.Next(cells);
      at[i + stride] = b.Next(cells);
      at[i + 2 * stride] = c.Next(cells);
      at[i + 3 * stride] = d.Next(cells);
    }
  }
  streams[0] = a, streams[1] = b, streams[2] = c, streams[3] = d;
  return static_cast<std::size_t>(at - out);
}

using InStep = std::size_t(CodeStream (&)[4], const std::uint16_t*, std::byte*, std::size_t,
                           std::size_t);

std::size_t DecodeInStepPlain(CodeStream (&streams)[4], const std::uint16_t* cells, std::byte* out,
                              std::size_t stride, std::size_t size) {
  return DecodeInStep(streams, cells, out, stride, size);
}

#if defined(__x86_64__)
[[gnu::target("bmi,bmi2")]] std::size_t DecodeInStepBmi(CodeStream (&streams)[4],
                                                        const std::uint16_t* cells, std::byte* out,
                                                        std::size_t stride, std::size_t size) {
  return DecodeInStep(streams, cells, out, stride, size);
}

InStep* FindInStep() {
  const bool bmi = __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  return bmi ? DecodeInStepBmi : DecodeInStepPlain;
}
#else
InStep* FindInStep() { return DecodeInStepPlain; }
#endif

}  // namespace

Status HuffmanTable::DecodeOne(ByteSpan stream, std::byte* out, std::size_t size) const {
  CodeStream codes;
  if (!codes.Open(stream)) return NoEndMark();
  return DecodeRest(codes, cells_.data(), out, out + size);
}

Status HuffmanTable::DecodeFour(ByteSpan streams, std::byte* out, std::size_t size) const {
  static InStep* const in_step = FindInStep();
  constexpr std::size_t kSizes = 6;
  if (streams.size() < kSizes) return Fail(Code::kCorrupt, "Huffman streams: truncated");
  CodeStream codes[4];
  std::size_t at = kSizes;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t left = streams.size() - at;
    const std::size_t bytes = i == 3 ? left : Load<std::uint16_t>(&streams[2 * i]);
    if (bytes > left) return Fail(Code::kCorrupt, "Huffman streams: truncated");
    if (!codes[i].Open(streams.subspan(at, bytes))) return NoEndMark();
    at += bytes;
  }
  const std::size_t stride = (size + 3) / 4;
  const std::size_t done = in_step(codes, cells_.data(), out, stride, size - 3 * stride);
  for (std::size_t i = 0; i < 4; ++i) {
    SYNCLINE_TRY(DecodeRest(codes[i], cells_.data(), out + i * stride + done,
                            out + (i == 3 ? size : (i + 1) * stride)));
  }
  return {};
}

}  // namespace syncline::delta
