#include "delta/overwrite_encoder.h"

#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "delta/encoding.h"
#include "tensor/unit_mask.h"

namespace syncline::delta {
namespace {

using base::ByteSpan;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

// Compares two images block by block; calls visit(mask, words, offset) with the units of
// each block that differ.
class Comparison {
 public:
  Comparison(ByteSpan a, ByteSpan b) : a_(a), b_(b) {}

  template <typename Visit>
  void ForEachBlock(std::size_t unit_bytes, const Visit& visit) {
    for (std::uint64_t at = 0; at < a_.size(); at += kBlockBytes) {
      const std::size_t size = std::min<std::uint64_t>(kBlockBytes, a_.size() - at);
      tensor::XorWithMask(&a_[at], &b_[at], size, unit_bytes, image_.data(), mask_.data());
      visit(mask_.data(), tensor::MaskWords(size, unit_bytes), at);
    }
  }

  // Calls visit(position) for each byte that differs.
  template <typename Visit>
  void ForEachByte(const Visit& visit) {
    ForEachBlock(1, [&](const std::uint64_t* mask, std::size_t words, std::uint64_t at) {
      tensor::ForEachSet(mask, words, [&](std::size_t byte) { visit(at + byte); });
    });
  }

 private:
  ByteSpan a_;
  ByteSpan b_;
  std::vector<std::byte> image_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::uint64_t> mask_ = std::vector<std::uint64_t>(kBlockBytes / 64);
};

// A zstd stream into a growing buffer.
class Compressor {
 public:
  explicit Compressor(std::uint64_t content_bytes) {
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setPledgedSrcSize(context_.get(), content_bytes);
    pending_.reserve(kPending);
  }

  template <typename T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    pending_.insert(pending_.end(), bytes, bytes + sizeof(T));
    if (pending_.size() >= kPending) Flush(ZSTD_e_continue);
  }

  Result<std::vector<std::byte>> Finish() {
    Flush(ZSTD_e_end);
    if (ZSTD_isError(error_)) {
      return Fail(Code::kInternal, fmt::format("zstd: {}", ZSTD_getErrorName(error_)));
    }
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kPending = 1 << 17;
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };

  void Flush(ZSTD_EndDirective directive) {
    ZSTD_inBuffer in = {pending_.data(), pending_.size(), 0};
    std::size_t left = 1;
    while (!ZSTD_isError(error_) && (directive == ZSTD_e_end ? left != 0 : in.pos < in.size)) {
      const std::size_t used = out_.size();
      out_.resize(used + ZSTD_CStreamOutSize());
      ZSTD_outBuffer out = {out_.data() + used, out_.size() - used, 0};
      left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      if (ZSTD_isError(left)) error_ = left;
      out_.resize(used + out.pos);
    }
    pending_.clear();
  }

  std::unique_ptr<ZSTD_CCtx, Free> context_{ZSTD_createCCtx()};
  std::vector<std::byte> pending_;
  std::vector<std::byte> out_;
  std::size_t error_ = 0;
};

}  // namespace

Result<OverwriteFrame> EncodeOverwrite(ByteSpan old_bytes, ByteSpan new_bytes, tensor::Dtype dtype,
                                       ChangedLines& lines) {
  if (old_bytes.size() > std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1) {
    return Fail(Code::kLimitExceeded,
                fmt::format("{} bytes, but overwrite positions reach only 4 GiB; use xor",
                            old_bytes.size()));
  }
  OverwriteFrame frame;
  std::uint64_t count = 0;
  Comparison comparison(old_bytes, new_bytes);
  const std::size_t unit = UnitBytes(dtype);
  comparison.ForEachBlock(
      unit, [&](const std::uint64_t* mask, std::size_t words, std::uint64_t at) {
        frame.changed_elements += tensor::CountElements(mask, words, UnitsPerElement(dtype));
        lines.MarkWords(mask, words, at, 64 * unit);
      });
  comparison.ForEachByte([&](std::uint64_t) { ++count; });
  if (count == 0) return frame;
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    return Fail(Code::kLimitExceeded, "every byte of 4 GiB differs; use xor");
  }
  Compressor compressor(4 + 5 * count);
  compressor.Put(static_cast<std::uint32_t>(count));
  comparison.ForEachByte([&](std::uint64_t at) { compressor.Put(static_cast<std::uint32_t>(at)); });
  comparison.ForEachByte([&](std::uint64_t at) { compressor.Put(new_bytes[at]); });
  SYNCLINE_ASSIGN(frame.bytes, compressor.Finish());
  return frame;
}

}  // namespace syncline::delta
