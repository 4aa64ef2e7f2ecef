// delta::OpenPatch and CheckFrame. The input is a byte of kind, three of the tensor's size, and a
// frame.
//
// - Where the zstd library decodes the frame to the size of the tensor, an xor patch walked block
//   by block is that image; where it does not, the patch is refused.
// - An overwrite patch is what a plain reading of the library's content gives; content that does
//   not follow the format is refused.
// - CheckFrame accepts whatever OpenPatch does, and counts the same bytes.
// - Memory stays within a multiple of the tensor's size, beside the window of the library.
#include <algorithm>

#include "delta/patch.h"
#include "frames.h"
#include "support.h"

namespace syncline::fuzz {
namespace {

using base::ByteSpan;
using delta::Encoding;
using Image = std::vector<std::byte>;

constexpr std::size_t kMaxTensor = std::size_t{1} << 19;
// The library reserves the window that a frame asks for, at most 128 MiB. Where malloc is counted:
#ifdef SYNCLINE_FUZZ
constexpr std::size_t kLibraryBytes = std::size_t{129} << 20;
#else
constexpr std::size_t kLibraryBytes = 0;
#endif

struct Input {
  Encoding encoding = Encoding::kXor;
  tensor::Dtype dtype = tensor::Dtype::kU8;
  std::size_t tensor_bytes = 0;
  ByteSpan frame;
};

// Applies all of a patch to `image`; nothing where it is refused.
std::optional<Image> Walk(const Input& input, Image image) {
  auto patch = OpenPatch(input.encoding, input.frame, input.tensor_bytes, input.dtype);
  if (!patch) {
    Must(patch.error().code == base::Code::kCorrupt, "a frame that is refused is corrupt");
    return std::nullopt;
  }
  delta::BlockPatch block = (*patch)->MakeBlock();
  for (std::size_t at = 0; at < image.size(); at += delta::kBlockBytes) {
    const std::size_t size = std::min(delta::kBlockBytes, image.size() - at);
    const auto part = std::span(image).subspan(at, size);
    if (!(*patch)->Next(part, block)) return std::nullopt;
    const Image before(part.begin(), part.end());
    std::vector<std::byte> record;
    block.Apply(part, at, 1, record);
    if (record.empty()) continue;
    const auto read = delta::BlockRecord::Read(record);
    Must(read.has_value() && read->record_bytes() == record.size(), "a record can be read");
    Must(at <= read->begin() && read->begin() <= read->end() && read->end() <= at + size,
         "a record stays in its block");
    Image back(part.begin(), part.end());
    read->Write(delta::Side::kOld,
                std::span(back).subspan(read->begin() - at, read->end() - read->begin()));
    Must(back == before, "a record leads back");
  }
  if (!(*patch)->Finish()) return std::nullopt;
  return image;
}

// What an overwrite frame's content makes of `image`.
std::optional<Image> Overwritten(const Image& content, Image image) {
  if (content.size() < 4) return std::nullopt;
  const std::uint64_t count = base::Load<std::uint32_t>(content.data());
  if (content.size() != 4 + 5 * count || count > image.size()) return std::nullopt;
  std::int64_t last = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const auto position = base::Load<std::uint32_t>(&content[4 + 4 * i]);
    if (position >= image.size() || position <= last) return std::nullopt;
    last = position;
    image[position] = content[4 + 4 * count + i];
  }
  return image;
}

std::optional<Image> Expected(const Input& input, const Image& old) {
  const auto content = LibraryContent(input.frame, 8 * kMaxTensor);
  if (!content) return std::nullopt;
  if (input.encoding == Encoding::kOverwrite) return Overwritten(*content, old);
  if (content->size() != old.size()) return std::nullopt;
  Image image = old;
  for (std::size_t i = 0; i < image.size(); ++i) image[i] ^= (*content)[i];
  return image;
}

void Check(const Input& input) {
  Image old(input.tensor_bytes);
  for (std::size_t i = 0; i < old.size(); ++i) old[i] = static_cast<std::byte>(i * 37 + (i >> 9));
  const MemoryWatch watch;
  const std::optional<Image> patched = Walk(input, old);
  Must(watch.peak() <= kLibraryBytes + (std::size_t{4} << 20) + 16 * input.tensor_bytes,
       "memory is bounded by the tensor");
  const std::optional<Image> expected = Expected(input, old);
  Must(patched.has_value() == expected.has_value(), "the library and the patch accept the same");
  if (!patched) return;
  Must(*patched == *expected, "the library and the patch read the same");
  const auto changed = CheckFrame(input.encoding, input.frame);
  Must(changed.has_value(), "a frame that can be applied is whole");
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < old.size(); ++i) different += old[i] != (*patched)[i] ? 1 : 0;
  // An overwrite frame may set a byte to what it was.
  Must(input.encoding == Encoding::kXor ? *changed == different : *changed >= different,
       "a frame says how much it changes");
}

}  // namespace
}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncline;
  if (size < 4) return 0;
  fuzz::Input input{.frame = fuzz::Bytes(data + 4, size - 4)};
  if ((data[0] & 1) != 0) input.encoding = delta::Encoding::kOverwrite;
  if ((data[0] & 2) != 0) input.dtype = tensor::Dtype::kBF16;
  input.tensor_bytes =
      (data[1] | std::size_t{data[2]} << 8 | std::size_t{data[3]} << 16) % (fuzz::kMaxTensor + 1);
  input.tensor_bytes -= input.tensor_bytes % UnitBytes(input.dtype);
  fuzz::Check(input);
  return 0;
}
