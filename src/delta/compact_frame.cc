#include "delta/compact_frame.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "delta/varint.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr int kPlaneLevel = 1;  // of zstd

// Bits from low to high, in memory that is large enough.
class BitWriter {
 public:
  explicit BitWriter(std::byte* at) : at_(at) {}

  // bits <= 56
  void Put(std::uint64_t value, unsigned bits) {
    word_ |= value << filled_;
    filled_ += bits;
    base::Store(at_, word_);
    const unsigned bytes = filled_ / 8;
    at_ += bytes;
    word_ >>= 8 * bytes;
    filled_ %= 8;
  }
  // Ends the stream with a set bit; returns the byte after it.
  std::byte* End() {
    Put(1, 1);
    return filled_ > 0 ? at_ + 1 : at_;
  }

 private:
  std::byte* at_;
  std::uint64_t word_ = 0;
  unsigned filled_ = 0;
};
constexpr std::size_t kMostBytesOfAChange = 9;  // 38 and 32 bits
constexpr std::size_t kMostBytesOfAStart = 128;

std::uint32_t GapSymbol(const Token& token) { return 1 + token.token; }

double Entropy(const Counts& counts) {
  double total = 0;
  double bits = 0;
  for (const std::uint32_t count : counts) {
    if (count == 0) continue;
    total += count;
    bits -= count * std::log2(static_cast<double>(count));
  }
  return total == 0 ? 0 : bits + total * std::log2(total);
}

// Puts the changes of a frame, the last one first: a reader goes the other way.
template <typename Unit>
std::byte* PutChanges(std::span<const Change> changes, unsigned classes,
                      const StepEncodeTables& tables, std::byte* at) {
  BitWriter writer(at);
  std::uint32_t gap_state = 0;
  std::uint32_t step_state = 0;
  struct Next {
    std::uint32_t symbol = kEndSymbol;
    std::uint32_t extra_bits = 0;
    std::uint32_t extra = 0;
  };
  std::array<Next, kMaxClasses> next;  // the gap after the last change of each class
  const auto code_gap = [&](std::uint32_t c) -> StepEncodeTable::Bits {
    const StepEncodeTable::Bits bits = tables.gaps[c].Put(next[c].symbol, gap_state);
    return {next[c].extra << bits.bits | bits.value, bits.bits + next[c].extra_bits};
  };
  for (std::size_t i = changes.size(); i-- > 0;) {
    const std::uint32_t c = changes[i].class_number();
    const StepEncodeTable::Bits gap_bits = code_gap(c);
    const Token step = StepToken(static_cast<Unit>(changes[i].step));
    const StepEncodeTable::Bits state = tables.steps[c].Put(step.token, step_state);
    const std::uint64_t step_bits = std::uint64_t{step.extra} << state.bits | state.value;
    if constexpr (sizeof(Unit) < 4) {
      // Both fit a word.
      writer.Put(step_bits << gap_bits.bits | gap_bits.value,
                 gap_bits.bits + state.bits + step.extra_bits);
    } else {
      writer.Put(gap_bits.value, gap_bits.bits);
      writer.Put(step_bits, state.bits + step.extra_bits);
    }
    const Token gap = ToToken(changes[i].gap());
    next[c] = {GapSymbol(gap), gap.extra_bits, gap.extra};
  }
  for (std::uint32_t c = classes; c-- > 0;) {
    const StepEncodeTable::Bits bits = code_gap(c);
    writer.Put(bits.value, bits.bits);
  }
  writer.Put(step_state, kStepLog);
  writer.Put(gap_state, kGapLog);
  return writer.End();
}

}  // namespace

std::uint64_t PieceScanner::Scan(ByteSpan old_bytes, ByteSpan new_bytes, std::uint64_t offset,
                                 std::size_t units_per_element, ChangedLines& lines,
                                 tensor::DigestChange* digest) {
  const std::size_t unit_bytes = UnitBytes(rule_.kind);
  const std::size_t units = old_bytes.size() / unit_bytes;
  std::uint64_t elements = 0;
  UnitMask changed;
  for (std::size_t at = 0; at < units; at += kStepBlockUnits) {
    const std::size_t found =
        ScanBlock(old_bytes.data() + at * unit_bytes, new_bytes.data() + at * unit_bytes,
                  std::min(kStepBlockUnits, units - at), rule_, after_, block_.get(), changed);
    if (found == 0) continue;
    found_.insert(found_.end(), block_.get(), block_.get() + found);
    elements += units_per_element == 1
                    ? found
                    : tensor::CountElements(changed.data(), changed.size(), units_per_element);
    lines.MarkWords(changed.data(), changed.size(), offset + at * unit_bytes, 64 * unit_bytes);
    if (digest == nullptr) continue;
    WithUnit(unit_bytes, [&]<typename Unit>(Unit) {
      const std::uint64_t first = offset / sizeof(Unit) + at;
      tensor::ForEachSet(changed.data(), changed.size(), [&](std::size_t unit) {
        digest->Add(first + unit, base::Load<Unit>(&old_bytes[(at + unit) * sizeof(Unit)]),
                    base::Load<Unit>(&new_bytes[(at + unit) * sizeof(Unit)]));
      });
    });
  }
  return elements;
}

double SparseBits(const PieceChanges& piece, UnitKind kind) {
  auto counts = std::make_unique<StepCounts>();
  double bits = 0;
  WithUnit(UnitBytes(kind), [&]<typename Unit>(Unit) {
    for (const Change& change : piece.changes) {
      const std::uint32_t c = change.class_number();
      const Token gap = ToToken(change.gap());
      const Token step = StepToken(static_cast<Unit>(change.step));
      ++counts->gaps[c][GapSymbol(gap)];
      ++counts->steps[c][step.token];
      bits += gap.extra_bits + step.extra_bits;
    }
  });
  for (std::size_t c = 0; c < kMaxClasses; ++c) {
    bits += Entropy(counts->gaps[c]) + Entropy(counts->steps[c]);
  }
  return bits;
}

double DenseBits(ByteSpan new_bytes, std::size_t unit_bytes) {
  std::array<std::array<std::uint32_t, 256>, 4> counts = {};
  for (std::size_t at = 0; at < new_bytes.size(); ++at) {
    ++counts[at % unit_bytes][static_cast<std::size_t>(new_bytes[at])];
  }
  const std::size_t count_of_units = new_bytes.size() / unit_bytes;
  const auto units = static_cast<double>(count_of_units);
  double bits = 0;
  for (std::size_t plane = 0; plane < unit_bytes; ++plane) {
    bits += units * std::log2(units);
    for (const std::uint32_t count : counts[plane]) {
      if (count != 0) bits -= count * std::log2(static_cast<double>(count));
    }
  }
  return bits;
}

Result<std::vector<std::byte>> EncodePlanes(ByteSpan new_bytes, std::size_t unit_bytes) {
  const std::size_t units = new_bytes.size() / unit_bytes;
  std::vector<std::byte> plane(units);
  std::vector<std::byte> frame(ZSTD_compressBound(units));
  std::vector<std::byte> out;
  for (std::size_t number = 0; number < unit_bytes; ++number) {
    for (std::size_t i = 0; i < units; ++i) plane[i] = new_bytes[i * unit_bytes + number];
    const std::size_t size =
        ZSTD_compress(frame.data(), frame.size(), plane.data(), plane.size(), kPlaneLevel);
    if (ZSTD_isError(size)) {
      return Fail(Code::kInternal, fmt::format("zstd: {}", ZSTD_getErrorName(size)));
    }
    AppendVarint(size, out);
    out.insert(out.end(), frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return out;
}

std::vector<Change> JoinFrame(std::vector<PieceChanges> pieces) {
  if (pieces.size() == 1) return std::move(pieces.front().changes);
  std::size_t total = 0;
  for (const PieceChanges& piece : pieces) total += piece.changes.size();
  std::vector<Change> changes;
  changes.reserve(total);
  ClassCounts before = {};  // units of each class since its last change, in earlier pieces
  for (PieceChanges& piece : pieces) {
    const std::size_t begin = changes.size();
    changes.insert(changes.end(), piece.changes.begin(), piece.changes.end());
    piece.changes = {};
    std::uint32_t seen = 0;  // classes of which the first change was met
    for (std::size_t i = begin; i < changes.size() && seen != (1U << kMaxClasses) - 1; ++i) {
      const std::uint32_t c = changes[i].class_number();
      if ((seen >> c & 1) != 0) continue;
      seen |= 1U << c;
      changes[i].gap_and_class += static_cast<std::uint32_t>(before[c] * kMaxClasses);
    }
    for (std::size_t c = 0; c < kMaxClasses; ++c) {
      before[c] = ((seen >> c & 1) != 0 ? 0 : before[c]) + piece.after[c];
    }
  }
  return changes;
}

void CountFrame(std::span<const Change> changes, UnitKind kind, unsigned classes,
                StepCounts& counts) {
  WithUnit(UnitBytes(kind), [&]<typename Unit>(Unit) {
    for (const Change& change : changes) {
      const std::uint32_t c = change.class_number();
      ++counts.gaps[c][GapSymbol(ToToken(change.gap()))];
      ++counts.steps[c][StepToken(static_cast<Unit>(change.step)).token];
    }
  });
  for (std::size_t c = 0; c < classes; ++c) ++counts.gaps[c][kEndSymbol];
}

std::vector<std::byte> EncodeFrame(std::span<const Change> changes, UnitKind kind, bool has_stream,
                                   std::span<const DensePart> dense, unsigned classes,
                                   const StepEncodeTables& tables, base::Buffer& scratch) {
  std::vector<std::byte> out;
  AppendVarint(dense.size(), out);
  for (const DensePart& part : dense) {
    AppendVarint(part.tensor, out);
    out.insert(out.end(), part.planes.begin(), part.planes.end());
  }
  if (!has_stream) return out;
  const base::MutableByteSpan memory =
      scratch.Get(kMostBytesOfAStart + kMostBytesOfAChange * changes.size());
  const std::byte* end = WithUnit(UnitBytes(kind), [&]<typename Unit>(Unit) {
    return PutChanges<Unit>(changes, classes, tables, memory.data());
  });
  out.insert(out.end(), static_cast<const std::byte*>(memory.data()), end);
  return out;
}

Status FrameDecoder::Open(ByteSpan frame, UnitKind kind, std::span<const Part> parts,
                          const StepDecodeTables& tables) {
  kind_ = kind;
  ByteReader from(frame);
  SYNCLINE_ASSIGN(const std::uint64_t dense, from.Varint(parts.size()));
  dense_.clear();
  for (std::uint64_t i = 0; i < dense; ++i) {
    SYNCLINE_ASSIGN(const std::uint64_t part, from.Varint(parts.size() - 1));
    if (i > 0 && part <= dense_.back().part) {
      return Fail(Code::kCorrupt, "the dense parts of a frame do not ascend");
    }
    Planes planes{.part = part, .units = parts[part].units};
    planes.bytes.resize(planes.units * UnitBytes(kind));
    for (std::size_t number = 0; number < UnitBytes(kind); ++number) {
      SYNCLINE_ASSIGN(const std::uint64_t size, from.Varint(from.left().size()));
      SYNCLINE_ASSIGN(const ByteSpan bytes, from.Bytes(size));
      const std::size_t got = ZSTD_decompress(planes.bytes.data() + number * planes.units,
                                              planes.units, bytes.data(), bytes.size());
      if (ZSTD_isError(got) || got != planes.units ||
          ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) != bytes.size()) {
        return Fail(Code::kCorrupt, "a plane of a dense part is damaged");
      }
    }
    dense_.push_back(std::move(planes));
  }
  has_stream_ = dense < parts.size();
  if (has_stream_) return reader_.Open(tables, from.left());
  return from.left().empty() ? Status()
                             : Fail(Code::kCorrupt, "a frame has more than its dense parts");
}

Status FrameDecoder::Next(std::size_t part, const std::byte* old_units, std::size_t units,
                          std::byte* new_units, UnitMask& changed) {
  const auto dense = std::ranges::find(dense_, part, &Planes::part);
  if (dense == dense_.end()) {
    return ReadBlock(old_units, units, kind_, reader_, new_units, changed);
  }
  const std::size_t unit_bytes = UnitBytes(kind_);
  for (std::size_t number = 0; number < unit_bytes; ++number) {
    const std::byte* plane = dense->bytes.data() + number * dense->units + dense->at;
    for (std::size_t i = 0; i < units; ++i) new_units[i * unit_bytes + number] = plane[i];
  }
  dense->at += units;
  changed.fill(0);
  for (std::size_t i = 0; i < units; i += 64) {
    changed[i / 64] = units - i >= 64 ? ~std::uint64_t{0} : ~std::uint64_t{0} >> (64 - (units - i));
  }
  return {};
}

Status FrameDecoder::Finish() const { return has_stream_ ? reader_.Finish() : Status(); }

}  // namespace syncline::delta
