#include "frames.h"

#include <zstd.h>

#include <memory>

namespace syncline::fuzz {

std::optional<std::vector<std::byte>> LibraryContent(base::ByteSpan frame, std::size_t limit) {
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  ZSTD_inBuffer in = {frame.data(), frame.size(), 0};
  std::vector<std::byte> content;
  std::vector<std::byte> piece(std::size_t{1} << 17);
  while (true) {
    ZSTD_outBuffer out = {piece.data(), piece.size(), 0};
    const std::size_t before = in.pos;
    const std::size_t left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left)) return std::nullopt;
    content.insert(content.end(), piece.begin(),
                   piece.begin() + static_cast<std::ptrdiff_t>(out.pos));
    if (content.size() > limit) return std::nullopt;
    if (left == 0) break;
    if (in.pos == before && out.pos == 0) return std::nullopt;  // truncated
  }
  if (in.pos != in.size) return std::nullopt;
  return content;
}

}  // namespace syncline::fuzz
