// A compressed block is a section of literals and a section of sequences: "copy so many literals,
// then repeat so many bytes from that far back". The literals are decoded first, all at once. Then
// each sequence puts its literals at their place in the image and marks them in the mask; its match
// is skipped, because it repeats a zero: its offset is 1 and the last literal is checked to be
// zero.
#include "delta/sparse_frame.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "delta/sequence_table.h"
#include "delta/sparse_block.h"
#include "delta/zstd_entropy.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::Result;
using base::Status;

constexpr std::size_t kMaxBlock = SparseFrameReader::kMaxBlock;

std::uint32_t Load24(const std::byte* from) {
  return static_cast<std::uint32_t>(from[0]) | static_cast<std::uint32_t>(from[1]) << 8 |
         static_cast<std::uint32_t>(from[2]) << 16;
}

}  // namespace

struct SparseFrameReader::State {
  using Outcome = SparseFrameReader::Outcome;

  ByteSpan frame;
  std::size_t at = 0;  // of the next block
  std::uint64_t content_bytes = kUnknown;
  std::uint64_t produced = 0;
  std::size_t max_block = 0;
  bool ended = false;
  bool zero_before = false;  // the last byte so far is zero; false if there is none

  // As the blocks before left them.
  bool has_huffman = false;
  HuffmanTable huffman;
  SequenceTables tables;
  SparseSequences sequences;

  std::size_t literal_count = 0;
  // With a zero before, and eight more that can be read.
  std::array<std::byte, 1 + kMaxBlock + 8> literal_buffer;
  std::byte* literals() { return literal_buffer.data() + 1; }
  // A block so near to the start of the frame that too few readable bytes stand before it.
  std::vector<std::byte> padded;

  Result<Outcome> Next(const BlockTarget& target, std::size_t& size);
  Result<std::size_t> ReadCompressed(ByteSpan body, BlockTarget target);
  Result<std::size_t> ReadLiterals(ByteSpan body);
};

// Reads the literals section into `literals`; returns the bytes it takes.
Result<std::size_t> SparseFrameReader::State::ReadLiterals(ByteSpan body) {
  enum Type : unsigned { kRaw, kRepeated, kHuffman, kSameHuffman };
  if (body.size() < 3) return Fail(Code::kIncompatible, "a block of less than three bytes");
  const auto first = static_cast<unsigned>(body[0]);
  const auto type = static_cast<Type>(first & 3);
  const unsigned format = first >> 2 & 3;
  const bool coded = type >= kHuffman;
  const std::size_t head =
      coded ? (format < 2 ? 3 : format + 2) : (format % 2 == 0 ? 1 : (format + 3) / 2);
  if (head > body.size()) return Fail(Code::kCorrupt, "literals: truncated");
  std::uint64_t fields = 0;
  std::memcpy(&fields, body.data(), head);
  // In bits: 2 of the type, 1 or 2 of the format, the number of literals, the size of their code.
  std::size_t coded_bytes = 0;
  if (coded) {
    const unsigned width = format < 2 ? 10 : format == 2 ? 14 : 18;
    literal_count = fields >> 4 & ((1U << width) - 1);
    coded_bytes = fields >> (4 + width) & ((1U << width) - 1);
  } else {
    literal_count = fields >> (head == 1 ? 3 : 4);
    coded_bytes = type == kRaw ? literal_count : 1;
  }
  if (literal_count > kMaxBlock) {
    return Fail(Code::kCorrupt, fmt::format("{} literals in one block", literal_count));
  }
  if (coded_bytes > body.size() - head) return Fail(Code::kCorrupt, "literals: truncated");
  ByteSpan source = body.subspan(head, coded_bytes);
  if (type == kRaw) {
    std::ranges::copy(source, literals());
    return head + coded_bytes;
  }
  if (type == kRepeated) {
    std::fill_n(literals(), literal_count, source[0]);
    return head + coded_bytes;
  }
  const bool four = format != 0;
  if (literal_count == 0) return Fail(Code::kIncompatible, "literals: none, but a Huffman code");
  if (four && literal_count < 6)
    return Fail(Code::kIncompatible, "literals: too few for four streams");
  if (type == kHuffman) {
    has_huffman = false;
    SYNCLINE_ASSIGN(const std::size_t table, huffman.Read(source));
    has_huffman = true;
    source = source.subspan(table);
  } else if (!has_huffman) {
    return Fail(Code::kCorrupt, "literals: no Huffman table before");
  }
  SYNCLINE_TRY(four ? huffman.DecodeFour(source, literals(), literal_count)
                    : huffman.DecodeOne(source, literals(), literal_count));
  return head + coded_bytes;
}

// Decodes a compressed block; returns the size of its content.
Result<std::size_t> SparseFrameReader::State::ReadCompressed(ByteSpan body, BlockTarget target) {
  SYNCLINE_ASSIGN(const std::size_t literal_bytes, ReadLiterals(body));
  ByteSpan rest = body.subspan(literal_bytes);
  if (rest.empty()) return Fail(Code::kCorrupt, "sequences: missing");
  auto count = static_cast<std::size_t>(rest[0]);
  const std::size_t count_bytes = count < 128 ? 1 : count < 255 ? 2 : 3;
  if (rest.size() < count_bytes) return Fail(Code::kCorrupt, "sequences: truncated");
  if (count_bytes == 2) count = (count - 128) << 8 | static_cast<std::size_t>(rest[1]);
  if (count_bytes == 3) count = 0x7f00U + Load<std::uint16_t>(&rest[1]);
  rest = rest.subspan(count_bytes);
  SequenceExtent used;
  if (count > 0) {
    SYNCLINE_ASSIGN(const std::size_t table_bytes, tables.Read(rest));
    BackwardBits bits;
    if (!bits.Open(rest.subspan(table_bytes))) {
      return Fail(Code::kCorrupt, "sequences: no end mark");
    }
    constexpr std::size_t kMany = 500;
    target.many_literals = count > kMany || literal_count > 4 * kMany;
    const auto extent = sequences.Put(tables, bits, count, {literals(), literal_count}, max_block,
                                      zero_before, target);
    if (!extent) return Fail(Code::kIncompatible, "sequences: not all repeat zeros");
    used = *extent;
  } else if (count_bytes > 1) {
    return Fail(Code::kIncompatible, "sequences: none, in two bytes");
  } else if (!rest.empty()) {
    return Fail(Code::kCorrupt,
                fmt::format("{} bytes follow a block without sequences", rest.size()));
  }
  const std::size_t left = literal_count - used.literals;
  if (left > max_block - used.bytes) return Fail(Code::kIncompatible, "the block is too large");
  if (used.bytes + left == 0)
    return Fail(Code::kIncompatible, "a compressed block without content");
  target.PutLast(literals() + used.literals, left, used.bytes);
  zero_before = left == 0 || literals()[literal_count - 1] == std::byte{0};
  return used.bytes + left;
}

Result<SparseFrameReader::Outcome> SparseFrameReader::State::Next(const BlockTarget& target,
                                                                  std::size_t& size) {
  enum Type : unsigned { kRaw, kRepeated, kCompressed };
  size = 0;
  if (ended) {
    if (at != frame.size()) {
      return Fail(Code::kCorrupt, fmt::format("{} bytes follow the zstd frame", frame.size() - at));
    }
    if (content_bytes != kUnknown && produced != content_bytes) {
      return Fail(Code::kCorrupt,
                  fmt::format("the frame decompresses to {} bytes, not to the {} that it says",
                              produced, content_bytes));
    }
    return Outcome::kEnd;
  }
  if (frame.size() - at < 3)
    return Fail(Code::kCorrupt, "the zstd frame is truncated: no last block");
  const std::uint32_t header = Load24(&frame[at]);
  at += 3;
  ended = (header & 1) != 0;
  const unsigned type = header >> 1 & 3;
  const std::size_t field = header >> 3;
  const std::size_t body_bytes = type == kRepeated ? 1 : field;
  if (type > kCompressed) return Fail(Code::kCorrupt, "damaged zstd frame: block type 3");
  if (body_bytes > frame.size() - at) return Fail(Code::kCorrupt, "the zstd frame is truncated");
  if (field > max_block) return Fail(Code::kIncompatible, "the block is too large");
  ByteSpan body = frame.subspan(at, body_bytes);
  if (type == kCompressed) {
    if (at < static_cast<std::size_t>(kBytesBefore)) {
      padded.assign(static_cast<std::size_t>(kBytesBefore), std::byte{0});
      padded.insert(padded.end(), body.begin(), body.end());
      body = std::span(padded).subspan(kBytesBefore);
    }
    SYNCLINE_ASSIGN(size, ReadCompressed(body, target));
  } else if (type == kRaw) {
    size = field;
    target.PutLast(body.data(), size, 0);
    if (size > 0) zero_before = body.back() == std::byte{0};
  } else {
    size = field;
    if (body[0] != std::byte{0}) {  // otherwise there is nothing to do
      std::fill_n(literals(), size, body[0]);
      target.PutLast(literals(), size, 0);
    }
    if (size > 0) zero_before = body[0] == std::byte{0};
  }
  at += body_bytes;
  produced += size;
  if (content_bytes != kUnknown && produced > content_bytes) {
    return Fail(Code::kCorrupt,
                fmt::format("the frame decompresses to more than the {} bytes that it says",
                            content_bytes));
  }
  if (size % target.unit_bytes != 0 && !ended) return Outcome::kNotSparse;
  return Outcome::kBlock;
}

std::optional<SparseFrameReader> SparseFrameReader::Open(ByteSpan frame) {
  constexpr std::uint32_t kMagic = 0xfd2fb528;
  constexpr unsigned kMaxWindowLog = 27;  // the library refuses more
  if (frame.size() < 6 || Load<std::uint32_t>(frame.data()) != kMagic) return std::nullopt;
  const auto descriptor = static_cast<unsigned>(frame[4]);
  // Any of: a dictionary, a checksum, the two bits that mean nothing.
  if ((descriptor & 0x1f) != 0) return std::nullopt;
  const bool single_segment = (descriptor & 0x20) != 0;
  const unsigned size_code = descriptor >> 6;
  const std::size_t size_bytes =
      size_code == 0 ? (single_segment ? 1 : 0) : std::size_t{1} << size_code;
  const std::size_t head = 5 + (single_segment ? 0 : 1) + size_bytes;
  if (frame.size() < head) return std::nullopt;

  auto state = std::make_unique_for_overwrite<State>();
  if (size_bytes > 0) {
    std::uint64_t size = 0;
    std::memcpy(&size, &frame[head - size_bytes], size_bytes);
    state->content_bytes = size + (size_bytes == 2 ? 256 : 0);
  }
  std::uint64_t window = state->content_bytes;
  if (!single_segment) {
    const auto byte = static_cast<unsigned>(frame[5]);
    window = std::uint64_t{8 + (byte & 7)} << (byte >> 3) << 7;
  }
  if (window > std::uint64_t{1} << kMaxWindowLog) return std::nullopt;
  state->literal_buffer[0] = std::byte{0};
  state->frame = frame;
  state->at = head;
  state->max_block = static_cast<std::size_t>(std::min<std::uint64_t>(window, kMaxBlock));
  return SparseFrameReader(std::move(state));
}

SparseFrameReader::SparseFrameReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
SparseFrameReader::~SparseFrameReader() = default;
SparseFrameReader::SparseFrameReader(SparseFrameReader&&) noexcept = default;
SparseFrameReader& SparseFrameReader::operator=(SparseFrameReader&&) noexcept = default;

std::uint64_t SparseFrameReader::content_bytes() const { return state_->content_bytes; }

Result<SparseFrameReader::Outcome> SparseFrameReader::NextBlock(std::byte* image,
                                                                std::uint64_t* mask,
                                                                std::size_t unit_bytes,
                                                                std::size_t& size) {
  auto outcome = state_->Next({.image = image, .mask = mask, .unit_bytes = unit_bytes}, size);
  if (!outcome && outcome.error().code == Code::kIncompatible) return Outcome::kNotSparse;
  return outcome;
}

}  // namespace syncline::delta
