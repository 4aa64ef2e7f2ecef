#include "payload/tensor_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;

constexpr std::size_t kMaxNameBytes = 1024;
// A trainer may send several packed forms of one storage, as of tied weights.
constexpr std::uint64_t kPackedPerStorage = 4;

// Length of the UTF-8 character at the start, by its first byte; 0 if it begins none.
std::size_t Utf8Length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

bool IsCharacter(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    if ((at(i) & 0xc0U) != 0x80) return false;
  }
  if (bytes.size() == 1) return at(0) >= ' ' && at(0) != 0x7f;
  if (bytes.size() == 3) {
    if (at(0) == 0xe0 && at(1) < 0xa0) return false;  // longer than need be
    return at(0) != 0xed || at(1) < 0xa0;             // halves of surrogate pairs
  }
  if (bytes.size() == 4) {
    if (at(0) == 0xf0 && at(1) < 0x90) return false;
    return at(0) != 0xf4 || at(1) < 0x90;  // beyond the last character
  }
  return true;
}

bool IsName(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes) return false;
  while (!text.empty()) {
    const std::size_t length = Utf8Length(static_cast<unsigned char>(text[0]));
    if (length == 0 || length > text.size() || !IsCharacter(text.substr(0, length))) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

void TensorBatch::Keep(Storages& storages) {
  std::uint64_t more = 0;
  if (__builtin_mul_overflow(storages.bytes(), kPackedPerStorage, &more) ||
      __builtin_add_overflow(may_pack_, more, &may_pack_)) {
    may_pack_ = ~std::uint64_t{0};
  }
  for (std::unique_ptr<Memory>& memory : storages.Take()) {
    memories_.push_back(std::move(memory));
  }
}

base::Result<base::ByteSpan> TensorBatch::Packed(std::string_view name, const View& view) {
  if (IsPacked(view)) return Run(view);
  const auto refuse = [&](std::string_view what) {
    return Fail(Code::kLimitExceeded,
                fmt::format("tensor {}: {} bytes when packed, {}", Quoted(name), view.bytes, what));
  };
  if (view.bytes > may_pack_) {
    return refuse(fmt::format("more than the {} that are left for its message", may_pack_));
  }
  std::unique_ptr<std::byte[]> packed(new (std::nothrow) std::byte[view.bytes]);  // NOLINT
  if (packed == nullptr) return refuse("more than there is memory for");
  const base::MutableByteSpan bytes(packed.get(), view.bytes);
  Pack(view, bytes);
  may_pack_ -= view.bytes;
  packed_.push_back(std::move(packed));
  return bytes;
}

base::Status TensorBatch::Add(NamedTensor tensor) {
  if (!IsName(tensor.name)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("\"{}\" is no name of a tensor: expected 1 to {} bytes of printable "
                            "UTF-8",
                            Quoted(tensor.name), kMaxNameBytes));
  }
  if (!names_.insert(tensor.name).second) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {} comes twice in one message", Quoted(tensor.name)));
  }
  tensors_.push_back(std::move(tensor));
  return {};
}

base::Status TensorBatch::Add(std::string_view name, const ElementType& element,
                              std::vector<std::uint64_t> shape, base::ByteSpan bytes) {
  const auto refuse = [&](const std::string& what) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {}: {}; it is torch.{} of shape {}", Quoted(name), what,
                            element.name, tensor::ShapeText(shape)));
  };
  base::Result<std::uint64_t> count = tensor::ElementCount(shape);
  std::uint64_t expected = 0;
  if (!count || __builtin_mul_overflow(*count, element.bytes, &expected)) {
    return refuse("the sizes overflow 64 bits");
  }
  if (expected != bytes.size()) {
    return refuse(fmt::format("expected {} bytes, found {}", expected, bytes.size()));
  }
  if (element.values > 1) {
    if (shape.empty()) return refuse("elements of two values need a dimension");
    if (__builtin_mul_overflow(shape.back(), element.values, &shape.back())) {
      return refuse("the sizes overflow 64 bits");
    }
  }
  return Add({std::string(name), element.dtype, std::move(shape), bytes});
}

base::Status TensorBatch::Add(std::string_view name, const View& view) {
  SYNCLINE_ASSIGN(const base::ByteSpan bytes, Packed(name, view));
  return Add(name, *view.element, view.shape, bytes);
}

}  // namespace syncline::payload
