// delta::XorEncoder and EncodeOverwrite. The input is a byte of kind, two of how often what follows
// is repeated in the tensor and how far apart, and the differences themselves.
//
// - The zstd library reads an xor frame as the difference of the two images.
// - Either patch makes the new image of the old one.
// - The number of changed elements is that of a plain comparison.
#include <algorithm>

#include "delta/overwrite_encoder.h"
#include "delta/patch.h"
#include "delta/xor_encoder.h"
#include "frames.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using delta::Encoding;
using Image = std::vector<std::byte>;

constexpr std::size_t kMaxTensor = std::size_t{1} << 19;

void CheckPatch(Encoding encoding, ByteSpan frame, tensor::Dtype dtype, Image image,
                const Image& expected) {
  auto patch = OpenPatch(encoding, frame, image.size(), dtype);
  Must(patch.has_value(), "a frame that was made can be opened");
  delta::BlockPatch block = (*patch)->MakeBlock();
  for (std::size_t at = 0; at < image.size(); at += delta::kBlockBytes) {
    const std::size_t size = std::min(delta::kBlockBytes, image.size() - at);
    const auto part = std::span(image).subspan(at, size);
    Must((*patch)->Next(part, block).has_value(), "a frame that was made can be read");
    std::vector<std::byte> record;
    block.Apply(part, at, 1, record);
  }
  Must((*patch)->Finish().has_value(), "a frame that was made ends");
  Must(image == expected, "a patch makes the new image");
}

std::uint64_t ChangedElements(const Image& a, const Image& b, tensor::Dtype dtype) {
  const std::size_t width = std::max(1U, Bits(dtype) / 8);
  std::uint64_t changed = 0;
  for (std::size_t at = 0; at < a.size(); at += width) {
    changed += std::equal(&a[at], &a[at] + width, &b[at]) ? 0 : 1;
  }
  return changed;
}

void Check(const Image& old, const Image& difference, tensor::Dtype dtype) {
  Image image = old;
  for (std::size_t i = 0; i < image.size(); ++i) image[i] ^= difference[i];
  const std::uint64_t changed = ChangedElements(old, image, dtype);

  delta::XorEncoder encoder;
  delta::ChangedLines lines(old.size());
  std::vector<delta::XorPiece> pieces;
  std::uint64_t counted = 0;
  for (std::size_t at = 0; at < old.size(); at += delta::kXorPieceBytes) {
    const std::size_t size = std::min(delta::kXorPieceBytes, old.size() - at);
    auto piece = encoder.Encode(ByteSpan(old).subspan(at, size), ByteSpan(image).subspan(at, size),
                                at, dtype, lines);
    Must(piece.has_value(), "a difference can be encoded");
    counted += piece->changed_elements;
    pieces.push_back(*std::move(piece));
  }
  Must(counted == changed, "xor counts the elements that differ");
  const std::vector<std::byte> frame = AssembleXorFrame(old.size(), pieces);
  Must(LibraryContent(frame, kMaxTensor) == difference, "the library reads the difference");
  CheckPatch(Encoding::kXor, frame, dtype, old, image);
  Image copied = old;
  lines.Copy(image, copied, 0, image.size());
  Must(copied == image, "the lines that differ are marked");

  delta::ChangedLines more(old.size());
  const auto overwrite = delta::EncodeOverwrite(old, image, dtype, more);
  Must(overwrite.has_value(), "a difference can be encoded");
  Must(overwrite->changed_elements == changed, "overwrite counts the elements that differ");
  Must(overwrite->bytes.empty() == (changed == 0), "no frame without a difference");
  if (changed > 0) CheckPatch(Encoding::kOverwrite, overwrite->bytes, dtype, old, image);
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  constexpr tensor::Dtype kDtypes[] = {tensor::Dtype::kU8, tensor::Dtype::kBF16,
                                       tensor::Dtype::kF32, tensor::Dtype::kF64};
  if (size < 4) return 0;
  const tensor::Dtype dtype = kDtypes[data[0] % 4];
  const std::size_t times = data[1] % 32 + 1U;
  const std::size_t apart = std::size_t{1} << (data[2] % 15);
  const base::ByteSpan values = fuzz::Bytes(data + 3, size - 3);
  const std::size_t stride = values.size() + apart;
  std::size_t bytes = std::min(times * stride, fuzz::kMaxTensor);
  bytes = (bytes + 7) / 8 * 8;
  fuzz::Image difference(bytes);
  for (std::size_t at = 0; at < bytes; at += stride) {
    std::copy_n(values.begin(), std::min(values.size(), bytes - at),
                difference.begin() + static_cast<std::ptrdiff_t>(at));
  }
  fuzz::Image old(bytes);
  for (std::size_t i = 0; i < bytes; ++i) old[i] = static_cast<std::byte>(i * 37 + (i >> 9));
  fuzz::Check(old, difference, dtype);
  return 0;
}
