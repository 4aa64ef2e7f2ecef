#include "payload/strided.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "base/result_matchers.h"

namespace syncline::payload {
namespace {

using base::Code;

const ElementType& Element(std::string_view name) {
  const auto found = FindName("torch", name);
  return *(*found)->element;
}

View Make(std::string_view element, base::ByteSpan storage, std::uint64_t offset,
          std::vector<std::uint64_t> shape, std::vector<std::uint64_t> strides) {
  return {.element = &Element(element),
          .storage = storage,
          .offset = offset,
          .shape = std::move(shape),
          .strides = std::move(strides)};
}

// Bytes 0, 1, 2 …
std::vector<std::byte> Storage(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<int> Packed(View view) {
  const auto checked = CheckView(view);
  if (!checked) return {-1};
  std::vector<std::byte> packed(view.bytes);
  Pack(view, packed);
  std::vector<int> numbers;
  for (const std::byte byte : packed) numbers.push_back(std::to_integer<int>(byte));
  return numbers;
}

TEST(Strided, Br40_ViewsArePackedInRows) {
  const auto storage = Storage(24);
  EXPECT_EQ(Packed(Make("uint8", storage, 0, {2, 3}, {1, 2})),
            (std::vector{0, 2, 4, 1, 3, 5}));  // transposed
  EXPECT_EQ(Packed(Make("uint8", storage, 7, {2, 2}, {6, 1})),
            (std::vector{7, 8, 13, 14}));  // a slice
  EXPECT_EQ(Packed(Make("uint8", storage, 3, {2, 3}, {1, 0})),
            (std::vector{3, 3, 3, 4, 4, 4}));  // expanded
  EXPECT_EQ(Packed(Make("uint8", storage, 0, {2, 3}, {1, 1})),
            (std::vector{0, 1, 2, 1, 2, 3}));  // overlapping
  EXPECT_EQ(Packed(Make("int16", storage, 1, {3}, {4})), (std::vector{2, 3, 10, 11, 18, 19}));
  EXPECT_EQ(Packed(Make("uint8", storage, 5, {}, {})), (std::vector{5}));
  EXPECT_EQ(Packed(Make("uint8", storage, 99, {2, 0}, {1, 1})), (std::vector<int>{}));
}

TEST(Strided, KnowsARun) {
  const auto storage = Storage(24);
  const auto is_run = [&](View view) {
    EXPECT_OK(CheckView(view));
    return IsPacked(view);
  };
  EXPECT_TRUE(is_run(Make("uint8", storage, 3, {2, 3}, {3, 1})));
  EXPECT_TRUE(is_run(Make("uint8", storage, 3, {2, 1, 3}, {3, 77, 1})));  // one index: no stride
  EXPECT_TRUE(is_run(Make("float32", storage, 5, {}, {})));
  EXPECT_TRUE(is_run(Make("float32", storage, 0, {0, 5}, {9, 9})));
  EXPECT_FALSE(is_run(Make("uint8", storage, 0, {2, 3}, {4, 1})));
  EXPECT_FALSE(is_run(Make("uint8", storage, 0, {3, 2}, {1, 3})));
  EXPECT_FALSE(is_run(Make("uint8", storage, 0, {3}, {0})));
}

TEST(Strided, RefusesViewsBeyondTheirStorage) {
  const auto storage = Storage(24);
  const auto refuse = [&](View view, std::string_view part) {
    EXPECT_ERROR(CheckView(view), Code::kInvalidArgument, std::string(part));
  };
  refuse(Make("uint8", storage, 0, {25}, {1}), "beyond its storage of 24 bytes");
  refuse(Make("uint8", storage, 24, {}, {}), "beyond its storage");
  refuse(Make("uint8", storage, 20, {2, 3}, {3, 1}), "beyond its storage");
  refuse(Make("float32", storage, 1, {6}, {1}), "beyond its storage");
  refuse(Make("float32", base::ByteSpan(storage).first(23), 0, {6}, {1}), "beyond its storage");
  refuse(Make("uint8", {}, 0, {1}, {1}), "beyond its storage of 0 bytes");
  const std::uint64_t huge = std::uint64_t{1} << 63;
  refuse(Make("uint8", storage, 0, {3}, {huge}), "beyond 64 bits");
  refuse(Make("uint8", storage, ~std::uint64_t{0}, {2}, {1}), "beyond 64 bits");
  refuse(Make("float32", storage, 0, {huge, 2}, {0, 0}), "beyond 64 bits");
  refuse(Make("uint8", storage, 0, {2, 2}, {1}), "length");
  refuse(Make("uint8", storage, 0, std::vector<std::uint64_t>(65, 1),
              std::vector<std::uint64_t>(65, 1)),
         "length");
}

// Any view is refused, or packed as the definition says: index by index.
RC_GTEST_PROP(Strided, PacksAsTheDefinitionSays, ()) {
  const auto storage = Storage(200);
  const auto element = *rc::gen::element<std::string>("uint8", "bfloat16", "float32", "float64");
  const auto rank = *rc::gen::inRange<std::size_t>(0, 5);
  const auto shape =
      *rc::gen::container<std::vector<std::uint64_t>>(rank, rc::gen::inRange<std::uint64_t>(0, 5));
  const auto strides =
      *rc::gen::container<std::vector<std::uint64_t>>(rank, rc::gen::inRange<std::uint64_t>(0, 9));
  View view = Make(element, storage, *rc::gen::inRange<std::uint64_t>(0, 20), shape, strides);
  const std::size_t size = view.element->bytes;
  const std::uint64_t count =
      std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
  std::vector<std::byte> expected;
  bool inside = true;
  for (std::uint64_t i = 0; i < count && inside; ++i) {
    std::uint64_t at = view.offset;
    std::uint64_t rest = i;
    for (std::size_t d = rank; d-- > 0; rest /= shape[d]) at += rest % shape[d] * strides[d];
    inside = (at + 1) * size <= storage.size();
    if (!inside) break;
    expected.insert(expected.end(), storage.begin() + static_cast<std::ptrdiff_t>(at * size),
                    storage.begin() + static_cast<std::ptrdiff_t>((at + 1) * size));
  }
  RC_ASSERT(CheckView(view).has_value() == inside);
  if (!inside) return;
  std::vector<std::byte> packed(view.bytes);
  Pack(view, packed);
  RC_ASSERT(packed == expected);
  if (!IsPacked(view)) return;
  const base::ByteSpan run = Run(view);
  RC_ASSERT(std::vector(run.begin(), run.end()) == expected);
}

}  // namespace
}  // namespace syncline::payload
