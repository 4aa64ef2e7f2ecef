#include "payload/strided.h"

#include <fmt/format.h>

#include <cstring>

namespace syncline::payload {
namespace {

using base::Code;
using base::Fail;

struct Dimension {
  std::uint64_t size;
  std::uint64_t stride;
};

bool IsEmpty(const View& view) { return view.bytes == 0; }

// The dimensions that have more than one index, with those merged that are walked as one.
std::vector<Dimension> Merged(const View& view) {
  std::vector<Dimension> merged;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    const Dimension next{view.shape[i], view.strides[i]};
    if (next.size == 1) continue;
    if (!merged.empty() && merged.back().stride == next.size * next.stride) {
      merged.back() = {merged.back().size * next.size, next.stride};
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

template <std::size_t kBytes>
std::byte* CopyRow(const std::byte* from, Dimension row, std::byte* to) {
  for (std::uint64_t i = 0; i < row.size; ++i) {
    std::memcpy(to, from, kBytes);
    from += row.stride * kBytes;
    to += kBytes;
  }
  return to;
}

std::byte* CopyRow(const std::byte* from, Dimension row, std::size_t element_bytes, std::byte* to) {
  if (row.stride == 1) {
    std::memcpy(to, from, row.size * element_bytes);
    return to + row.size * element_bytes;
  }
  switch (element_bytes) {
    case 1:
      return CopyRow<1>(from, row, to);
    case 2:
      return CopyRow<2>(from, row, to);
    case 4:
      return CopyRow<4>(from, row, to);
    default:
      return CopyRow<8>(from, row, to);
  }
}

}  // namespace

base::Status CheckView(View& view) {
  const auto refuse = [&](std::string_view what) {
    return Fail(
        Code::kInvalidArgument,
        fmt::format("{}: {} of shape {} and strides {} at element {}", what, view.element->name,
                    tensor::ShapeText(view.shape), tensor::ShapeText(view.strides), view.offset));
  };
  if (view.shape.size() != view.strides.size() || view.shape.size() > kMaxDimensions) {
    return refuse("shape and strides are not of the same, or of a usual, length");
  }
  view.bytes = view.element->bytes;
  std::uint64_t last = view.offset;
  bool empty = false;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 0) {
      empty = true;
      continue;
    }
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(view.bytes, view.shape[i], &view.bytes) ||
        __builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return refuse("sizes beyond 64 bits");
    }
  }
  if (empty) {
    view.bytes = 0;
    return {};
  }
  if (last >= view.storage.size() / view.element->bytes) {
    return refuse(fmt::format("a view beyond its storage of {} bytes", view.storage.size()));
  }
  return {};
}

bool IsPacked(const View& view) {
  if (IsEmpty(view)) return true;
  const std::vector<Dimension> dimensions = Merged(view);
  return dimensions.empty() || (dimensions.size() == 1 && dimensions[0].stride == 1);
}

base::ByteSpan Run(const View& view) {
  if (IsEmpty(view)) return {};
  return view.storage.subspan(view.offset * view.element->bytes, view.bytes);
}

// The last dimension is copied row by row; the others count like an odometer.
void Pack(const View& view, base::MutableByteSpan to) {
  if (IsEmpty(view)) return;
  std::vector<Dimension> outer = Merged(view);
  Dimension row{1, 1};
  if (!outer.empty()) {
    row = outer.back();
    outer.pop_back();
  }
  const std::size_t element = view.element->bytes;
  std::vector<std::uint64_t> index(outer.size(), 0);
  const std::byte* from = view.storage.data() + view.offset * element;
  std::byte* at = to.data();
  for (;;) {
    at = CopyRow(from, row, element, at);
    std::size_t i = outer.size();
    while (i > 0 && index[i - 1] + 1 == outer[i - 1].size) {
      --i;
      from -= index[i] * outer[i].stride * element;
      index[i] = 0;
    }
    if (i == 0) return;
    ++index[i - 1];
    from += outer[i - 1].stride * element;
  }
}

}  // namespace syncline::payload
