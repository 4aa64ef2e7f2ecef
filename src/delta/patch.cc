#include "delta/patch.h"

#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "delta/words.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::MutableByteSpan;
using base::Result;
using base::Status;

// A zstd frame read piece by piece.
class FrameReader {
 public:
  // expected_bytes: what the frame must decompress to; kUnknown if it is not known.
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  static Result<FrameReader> Open(ByteSpan frame, std::uint64_t expected_bytes) {
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR) return Fail(Code::kCorrupt, "not a zstd frame");
    FrameReader reader(frame);
    if (size != ZSTD_CONTENTSIZE_UNKNOWN) {
      if (expected_bytes != kUnknown && size != expected_bytes) {
        return Fail(Code::kCorrupt, fmt::format("the frame decompresses to {} bytes, expected {}",
                                                size, expected_bytes));
      }
      reader.content_bytes_ = size;
    }
    return reader;
  }

  // kUnknown where the frame does not say.
  std::uint64_t content_bytes() const { return content_bytes_; }

  // Fills `into` as far as the frame goes; fewer bytes only at its end.
  Result<std::size_t> ReadSome(MutableByteSpan into) {
    ZSTD_outBuffer out = {into.data(), into.size(), 0};
    while (out.pos < out.size && !ended_) SYNCLINE_TRY(Step(out));
    return out.pos;
  }

  Status ReadExactly(MutableByteSpan into) {
    SYNCLINE_ASSIGN(const std::size_t got, ReadSome(into));
    read_ += got;
    if (got == into.size()) return {};
    return Fail(Code::kCorrupt, fmt::format("the frame ends after {} bytes, expected more", read_));
  }

  // kCorrupt unless the frame ends here, and the bytes it was given in with it.
  Status ExpectEnd() {
    std::byte extra;
    ZSTD_outBuffer out = {&extra, 1, 0};
    while (out.pos == 0 && !ended_) SYNCLINE_TRY(Step(out));
    if (out.pos != 0) return Fail(Code::kCorrupt, "the frame decompresses to more than expected");
    if (in_.pos != in_.size) {
      return Fail(Code::kCorrupt,
                  fmt::format("{} bytes follow the zstd frame", in_.size - in_.pos));
    }
    return {};
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  explicit FrameReader(ByteSpan frame)
      : context_(ZSTD_createDCtx()), in_{frame.data(), frame.size(), 0} {}

  Status Step(ZSTD_outBuffer& out) {
    const std::size_t before_in = in_.pos;
    const std::size_t before_out = out.pos;
    const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in_);
    if (ZSTD_isError(left)) {
      return Fail(Code::kCorrupt, fmt::format("damaged zstd frame: {}", ZSTD_getErrorName(left)));
    }
    ended_ = left == 0;
    if (!ended_ && in_.pos == before_in && out.pos == before_out) {
      return Fail(Code::kCorrupt, "the zstd frame is truncated");
    }
    return {};
  }

  std::unique_ptr<ZSTD_DCtx, Free> context_;
  ZSTD_inBuffer in_;
  std::uint64_t content_bytes_ = kUnknown;
  std::uint64_t read_ = 0;
  bool ended_ = false;
};

template <typename Unit>
void ApplyXorWord(std::byte* at, std::size_t unit, std::uint64_t x, BlockChanges& changes) {
  for (; x != 0; ++unit, at += sizeof(Unit)) {
    if constexpr (sizeof(Unit) < 8) {
      const auto part = static_cast<Unit>(x);
      x >>= 8 * sizeof(Unit);
      if (part == 0) continue;
      const auto old_value = Load<Unit>(at);
      const auto new_value = static_cast<Unit>(old_value ^ part);
      changes.Add(unit, reinterpret_cast<const std::byte*>(&old_value),
                  reinterpret_cast<const std::byte*>(&new_value));
      base::Store(at, new_value);
    }
  }
}

template <typename Unit>
void ApplyXor(ByteSpan image, MutableByteSpan block, BlockChanges& changes) {
  std::size_t at = 0;
  for (; at + 32 <= block.size(); at += 32) {
    const auto x0 = Load<std::uint64_t>(&image[at]);
    const auto x1 = Load<std::uint64_t>(&image[at + 8]);
    const auto x2 = Load<std::uint64_t>(&image[at + 16]);
    const auto x3 = Load<std::uint64_t>(&image[at + 24]);
    if ((x0 | x1 | x2 | x3) == 0) continue;
    if (x0 != 0) ApplyXorWord<Unit>(&block[at], at / sizeof(Unit), x0, changes);
    if (x1 != 0) ApplyXorWord<Unit>(&block[at + 8], (at + 8) / sizeof(Unit), x1, changes);
    if (x2 != 0) ApplyXorWord<Unit>(&block[at + 16], (at + 16) / sizeof(Unit), x2, changes);
    if (x3 != 0) ApplyXorWord<Unit>(&block[at + 24], (at + 24) / sizeof(Unit), x3, changes);
  }
  for (; at < block.size(); at += 8) {
    ApplyXorWord<Unit>(block.data() + at, at / sizeof(Unit), LoadUpTo8(image.subspan(at)), changes);
  }
}

class XorPatch final : public TensorPatch {
 public:
  explicit XorPatch(FrameReader frame) : frame_(std::move(frame)), image_(kBlockBytes) {}

  Status ApplyNext(MutableByteSpan block, BlockChanges& changes) override {
    const MutableByteSpan image = std::span(image_).first(block.size());
    SYNCLINE_TRY(frame_.ReadExactly(image));
    switch (changes.unit_bytes()) {
      case 1:
        ApplyXor<std::uint8_t>(image, block, changes);
        break;
      case 2:
        ApplyXor<std::uint16_t>(image, block, changes);
        break;
      default:
        ApplyXor<std::uint32_t>(image, block, changes);
    }
    return {};
  }

  Status Finish() override { return frame_.ExpectEnd(); }

 private:
  FrameReader frame_;
  std::vector<std::byte> image_;
};

// The content of an overwrite frame, whole, because each value stands far from its position.
struct OverwriteContent {
  std::vector<std::byte> bytes;
  std::uint32_t count = 0;

  std::uint32_t position(std::size_t i) const { return Load<std::uint32_t>(&bytes[4 + 4 * i]); }
  std::byte value(std::size_t i) const { return bytes[4 + 4 * std::size_t{count} + i]; }

  // max_count: of positions, by the size of the tensor.
  static Result<OverwriteContent> Read(ByteSpan frame, std::uint64_t max_count) {
    SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, FrameReader::kUnknown));
    std::array<std::byte, 4> head;
    SYNCLINE_TRY(reader.ReadExactly(head));
    OverwriteContent content{.count = Load<std::uint32_t>(head.data())};
    const std::uint64_t size = 4 + 5 * std::uint64_t{content.count};
    if (content.count > max_count) {
      return Fail(Code::kCorrupt, fmt::format("{} positions for a tensor of {} bytes",
                                              content.count, max_count));
    }
    if (reader.content_bytes() != FrameReader::kUnknown && reader.content_bytes() != size) {
      return Fail(Code::kCorrupt,
                  fmt::format("the frame decompresses to {} bytes, but {} positions take {}",
                              reader.content_bytes(), content.count, size));
    }
    // Grown as the frame yields bytes, so that a frame cannot ask for more memory than it fills.
    content.bytes.assign(head.begin(), head.end());
    while (content.bytes.size() < size) {
      const std::size_t old_size = content.bytes.size();
      const std::uint64_t step = std::max<std::uint64_t>(old_size, 1 << 20);
      content.bytes.resize(std::min(size, old_size + step));
      SYNCLINE_TRY(reader.ReadExactly(std::span(content.bytes).subspan(old_size)));
    }
    SYNCLINE_TRY(reader.ExpectEnd());
    return content;
  }
};

class OverwritePatch final : public TensorPatch {
 public:
  static Result<std::unique_ptr<TensorPatch>> Open(ByteSpan frame, std::uint64_t tensor_bytes) {
    SYNCLINE_ASSIGN(OverwriteContent content, OverwriteContent::Read(frame, tensor_bytes));
    for (std::size_t i = 0; i < content.count; ++i) {
      const std::uint32_t position = content.position(i);
      if (position >= tensor_bytes) {
        return Fail(Code::kCorrupt, fmt::format("position {} lies outside of the {} bytes",
                                                position, tensor_bytes));
      }
      if (i > 0 && position <= content.position(i - 1)) {
        return Fail(Code::kCorrupt, fmt::format("position {} follows {}; positions must ascend",
                                                position, content.position(i - 1)));
      }
    }
    return std::make_unique<OverwritePatch>(std::move(content));
  }

  explicit OverwritePatch(OverwriteContent content) : content_(std::move(content)) {}

  Status ApplyNext(MutableByteSpan block, BlockChanges& changes) override {
    const std::uint32_t unit_bytes = changes.unit_bytes();
    while (next_ < content_.count && content_.position(next_) < offset_ + block.size()) {
      // All positions that fall into one unit are one change.
      const std::size_t unit = (content_.position(next_) - offset_) / unit_bytes;
      std::byte* at = block.data() + unit * unit_bytes;
      std::array<std::byte, 4> old_value;
      std::memcpy(old_value.data(), at, unit_bytes);
      const std::uint64_t end = offset_ + (unit + 1) * unit_bytes;
      for (; next_ < content_.count && content_.position(next_) < end; ++next_) {
        block[content_.position(next_) - offset_] = content_.value(next_);
      }
      if (std::memcmp(old_value.data(), at, unit_bytes) != 0) {
        changes.Add(unit, old_value.data(), at);
      }
    }
    offset_ += block.size();
    return {};
  }

  Status Finish() override { return {}; }

 private:
  OverwriteContent content_;
  std::size_t next_ = 0;      // first position that was not written yet
  std::uint64_t offset_ = 0;  // of the next block
};

}  // namespace

Result<std::unique_ptr<TensorPatch>> OpenPatch(Encoding encoding, ByteSpan frame,
                                               std::uint64_t tensor_bytes) {
  if (encoding == Encoding::kOverwrite) return OverwritePatch::Open(frame, tensor_bytes);
  SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, tensor_bytes));
  return std::make_unique<XorPatch>(std::move(reader));
}

Result<std::uint64_t> CheckFrame(Encoding encoding, ByteSpan frame) {
  if (encoding == Encoding::kOverwrite) {
    SYNCLINE_ASSIGN(const OverwriteContent content,
                    OverwriteContent::Read(frame, std::numeric_limits<std::uint32_t>::max()));
    return content.count;
  }
  SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, FrameReader::kUnknown));
  std::vector<std::byte> image(kBlockBytes);
  std::uint64_t changed = 0;
  while (true) {
    SYNCLINE_ASSIGN(const std::size_t got, reader.ReadSome(image));
    if (got == 0) break;
    for (std::size_t at = 0; at < got; at += 8) {
      const std::uint64_t word = LoadUpTo8(ByteSpan(image).subspan(at, std::min<std::size_t>(8, got - at)));
      if (word != 0) changed += NonZeroUnits<std::uint8_t>(word);
    }
  }
  SYNCLINE_TRY(reader.ExpectEnd());
  return changed;
}

}  // namespace syncline::delta
