#include "delta/patch.h"

#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <vector>

#include "delta/sparse_frame.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Load;
using base::MutableByteSpan;
using base::Result;
using base::Status;

Status FailTooMuch() {
  return Fail(Code::kCorrupt, "the frame decompresses to more than expected");
}

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
    if (out.pos != 0) return FailTooMuch();
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

// Reads xor frames of a tensor with units of sizeof(Unit) bytes. Frames whose matches only repeat
// zeros (ours, and some of others) go through the SparseFrameReader, which takes time by what
// changed; as soon as it declines, the library reads on from the same place.
template <typename Unit>
class XorPatch final : public TensorPatch {
 public:
  XorPatch(ByteSpan frame, FrameReader dense)
      : dense_(std::move(dense)),
        sparse_(SparseFrameReader::Open(frame)),
        image_(SparseFrameReader::kImageBytes),
        mask_(SparseFrameReader::kMaskWords) {}

  Status Next(ByteSpan old_block, BlockPatch& block) override {
    block.Clear();
    const std::uint64_t begin = offset_;
    const std::uint64_t end = offset_ + old_block.size();
    while (sparse_ && offset_ < end) {
      if (offset_ == sparse_end_) {
        SYNCLINE_TRY(ReadSparse());
      } else {
        TakeSparse(begin, end, block);
      }
    }
    if (offset_ == end) return {};
    return ReadDense(begin, end, block);
  }

  Status Finish() override {
    if (!sparse_) return dense_.ExpectEnd();
    if (offset_ != sparse_end_) return FailTooMuch();
    std::size_t size = 0;
    SYNCLINE_ASSIGN(const auto outcome,
                    sparse_->NextBlock(image_.data(), mask_.data(), sizeof(Unit), size));
    if (outcome == SparseFrameReader::Outcome::kEnd) return {};
    if (outcome == SparseFrameReader::Outcome::kBlock && size > 0) return FailTooMuch();
    SYNCLINE_TRY(SkipDense());
    return dense_.ExpectEnd();
  }

  BlockPatch MakeBlock() const override { return {BlockPatch::Kind::kXor, sizeof(Unit)}; }

 private:
  // Decodes the next zstd block; image and mask are all zero before.
  Status ReadSparse() {
    std::size_t size = 0;
    SYNCLINE_ASSIGN(const auto outcome,
                    sparse_->NextBlock(image_.data(), mask_.data(), sizeof(Unit), size));
    if (outcome == SparseFrameReader::Outcome::kNotSparse) return SkipDense();
    if (outcome == SparseFrameReader::Outcome::kEnd) {
      return Fail(Code::kCorrupt,
                  fmt::format("the frame ends after {} bytes, expected more", offset_));
    }
    sparse_begin_ = sparse_end_;
    sparse_end_ += size;
    word_ = 0;
    return {};
  }

  // Hands out what the current zstd block has before `end`, and clears it.
  void TakeSparse(std::uint64_t begin, std::uint64_t end, BlockPatch& block) {
    const std::uint64_t until = std::min(end, sparse_end_);
    const std::size_t limit =
        (until - sparse_begin_ + sizeof(Unit) - 1) / sizeof(Unit);  // in units
    const std::size_t shift =
        (begin - sparse_begin_) / sizeof(Unit);  // wraps if the block began before
    for (; word_ * 64 < limit; ++word_) {
      std::uint64_t& bits = mask_[word_];
      while (bits != 0) {
        const std::size_t unit = word_ * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        if (unit >= limit) break;
        std::byte* at = image_.data() + unit * sizeof(Unit);
        block.Add(unit - shift, Load<Unit>(at));
        base::Store(at, Unit{0});
        bits &= bits - 1;
      }
      if (bits != 0) break;
    }
    offset_ = until;
  }

  // Leaves the frame to the library, which reads up to offset_ once more.
  Status SkipDense() {
    sparse_.reset();
    for (std::uint64_t left = offset_; left > 0;) {
      const std::size_t size = std::min<std::uint64_t>(left, kBlockBytes);
      SYNCLINE_TRY(dense_.ReadExactly(std::span(image_).first(size)));
      left -= size;
    }
    return {};
  }

  Status ReadDense(std::uint64_t begin, std::uint64_t end, BlockPatch& block) {
    const MutableByteSpan image = std::span(image_).first(end - offset_);
    SYNCLINE_TRY(dense_.ReadExactly(image));
    tensor::NonZeroMask(image.data(), image.size(), sizeof(Unit), mask_.data());
    const std::size_t first = (offset_ - begin) / sizeof(Unit);
    tensor::ForEachSet(mask_.data(), tensor::MaskWords(image.size(), sizeof(Unit)),
                       [&](std::size_t unit) {
                         block.Add(first + unit, Load<Unit>(&image[unit * sizeof(Unit)]));
                       });
    offset_ = end;
    return {};
  }

  FrameReader dense_;
  std::optional<SparseFrameReader> sparse_;  // nothing: the library reads
  std::vector<std::byte> image_;
  std::vector<std::uint64_t> mask_;
  std::uint64_t offset_ = 0;        // of the next byte to hand out
  std::uint64_t sparse_begin_ = 0;  // range of the zstd block in image_ and mask_
  std::uint64_t sparse_end_ = 0;
  std::size_t word_ = 0;  // of mask_, before which all is handed out
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
      return Fail(Code::kCorrupt,
                  fmt::format("{} positions for a tensor of {} bytes", content.count, max_count));
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

  Status Next(ByteSpan old_block, BlockPatch& block) override {
    block.Clear();
    const std::uint64_t end = offset_ + old_block.size();
    for (; next_ < content_.count && content_.position(next_) < end; ++next_) {
      block.Add(content_.position(next_) - offset_,
                static_cast<std::uint8_t>(content_.value(next_)));
    }
    offset_ = end;
    return {};
  }

  Status Finish() override { return {}; }

  BlockPatch MakeBlock() const override { return {BlockPatch::Kind::kSet, 1}; }

 private:
  OverwriteContent content_;
  std::size_t next_ = 0;      // first position that was not handed out yet
  std::uint64_t offset_ = 0;  // of the next block
};

// Reads an overwrite frame from end to end, a piece at a time, however much it says it holds.
Result<std::uint64_t> CheckOverwriteFrame(ByteSpan frame) {
  SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, FrameReader::kUnknown));
  std::array<std::byte, 4> head;
  SYNCLINE_TRY(reader.ReadExactly(head));
  const std::uint64_t count = Load<std::uint32_t>(head.data());
  std::vector<std::byte> piece(kBlockBytes);
  std::int64_t last = -1;
  for (std::uint64_t left = 4 * count; left > 0;) {
    const MutableByteSpan part = std::span(piece).first(std::min<std::uint64_t>(left, kBlockBytes));
    SYNCLINE_TRY(reader.ReadExactly(part));
    for (std::size_t at = 0; at < part.size(); at += 4) {
      const auto position = Load<std::uint32_t>(&part[at]);
      if (position <= last) {
        return Fail(Code::kCorrupt,
                    fmt::format("position {} follows {}; positions must ascend", position, last));
      }
      last = position;
    }
    left -= part.size();
  }
  for (std::uint64_t left = count; left > 0;) {
    const MutableByteSpan part = std::span(piece).first(std::min<std::uint64_t>(left, kBlockBytes));
    SYNCLINE_TRY(reader.ReadExactly(part));
    left -= part.size();
  }
  SYNCLINE_TRY(reader.ExpectEnd());
  return count;
}

}  // namespace

Result<std::unique_ptr<TensorPatch>> OpenPatch(Encoding encoding, ByteSpan frame,
                                               std::uint64_t tensor_bytes, tensor::Dtype dtype) {
  if (encoding == Encoding::kOverwrite) return OverwritePatch::Open(frame, tensor_bytes);
  SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, tensor_bytes));
  if (UnitBytes(dtype) == 1) {
    return std::make_unique<XorPatch<std::uint8_t>>(frame, std::move(reader));
  }
  return std::make_unique<XorPatch<std::uint16_t>>(frame, std::move(reader));
}

Result<std::uint64_t> CheckFrame(Encoding encoding, ByteSpan frame) {
  if (encoding == Encoding::kOverwrite) return CheckOverwriteFrame(frame);
  SYNCLINE_ASSIGN(FrameReader reader, FrameReader::Open(frame, FrameReader::kUnknown));
  std::vector<std::byte> image(kBlockBytes);
  std::vector<std::uint64_t> mask(kBlockBytes / 64);
  std::uint64_t changed = 0;
  while (true) {
    SYNCLINE_ASSIGN(const std::size_t got, reader.ReadSome(image));
    if (got == 0) break;
    tensor::NonZeroMask(image.data(), got, 1, mask.data());
    changed += tensor::CountElements(mask.data(), tensor::MaskWords(got, 1), 1);
  }
  SYNCLINE_TRY(reader.ExpectEnd());
  return changed;
}

}  // namespace syncline::delta
