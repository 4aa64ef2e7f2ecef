#include "layout/box.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "layout/random_plan.h"

namespace syncline::layout {
namespace {

using Shape = std::vector<std::uint64_t>;

Shape RandomShape() {
  Shape shape(Draw(0, 4));
  for (std::uint64_t& size : shape) size = Draw(1, 6);
  return shape;
}

Box RandomBox(const Shape& shape) {
  Box box = WholeBox(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.begin[d] = Draw(0, shape[d]);
    box.end[d] = Draw(box.begin[d] + 1, shape[d] + 1);
  }
  return box;
}

// Boxes up to the first one that overlaps another, which is taken in sometimes, so that both
// answers are common.
std::vector<Box> RandomBoxes(const Shape& shape) {
  std::vector<Box> boxes;
  std::vector<int> taken(WholeBox(shape).elements());
  const bool disjoint = Draw(0, 2) == 1;
  for (std::uint64_t i = Draw(0, 12); i > 0; --i) {
    const Box box = RandomBox(shape);
    const auto elements = ElementsOf(shape, box);
    const bool overlaps =
        std::ranges::any_of(elements, [&](std::uint64_t element) { return taken[element] != 0; });
    if (disjoint && overlaps) continue;
    for (const std::uint64_t element : elements) ++taken[element];
    boxes.push_back(box);
    if (overlaps) break;
  }
  return boxes;
}

std::vector<const Box*> Pointers(const std::vector<Box>& boxes) {
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  return pointers;
}

RC_GTEST_PROP(BoxTest, FindsAnOverlap, ()) {
  const Shape shape = RandomShape();
  const std::vector<Box> boxes = RandomBoxes(shape);
  const auto overlap = FindOverlap(Pointers(boxes));
  std::map<std::uint64_t, std::vector<std::size_t>> users;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (const auto element : ElementsOf(shape, boxes[i])) users[element].push_back(i);
  }
  const bool expected =
      std::ranges::any_of(users, [](const auto& u) { return u.second.size() > 1; });
  RC_ASSERT(overlap.has_value() == expected);
  if (!overlap) return;
  const auto& [a, b] = *overlap;
  RC_ASSERT(a < b);
  RC_ASSERT(std::ranges::any_of(users, [a = a, b = b](const auto& u) {
    return std::ranges::count(u.second, a) == 1 && std::ranges::count(u.second, b) == 1;
  }));
}

RC_GTEST_PROP(BoxTest, FindsTheFirstGap, ()) {
  const Shape shape = RandomShape();
  std::vector<Box> boxes = RandomBoxes(shape);
  if (Draw(0, 2) == 1 && !shape.empty()) {
    // All of dimension 0 up to a place, so that gaps lie behind something.
    Box head = WholeBox(shape);
    head.end[0] = Draw(1, shape[0] + 1);
    boxes.push_back(head);
  }
  std::vector<bool> covered(WholeBox(shape).elements());
  for (const Box& box : boxes) {
    for (const auto element : ElementsOf(shape, box)) covered[element] = true;
  }
  const auto expected = std::ranges::find(covered, false);
  const auto gap = FirstGap(shape, Pointers(boxes));
  RC_ASSERT(gap.has_value() == (expected != covered.end()));
  if (!gap) return;
  Box element{.begin = *gap, .end = *gap};
  for (std::uint64_t& end : element.end) ++end;
  RC_ASSERT(ElementsOf(shape, element).front() ==
            static_cast<std::uint64_t>(expected - covered.begin()));
}

TEST(BoxTest, Text) {
  EXPECT_EQ(BoxText({{0, 8}, {4, 16}}), "[0:4, 8:16]");
  EXPECT_EQ(BoxText({}), "[]");
  EXPECT_EQ(WholeBox(Shape{2, 3}).elements(), 6U);
  EXPECT_EQ(WholeBox(Shape{}).elements(), 1U);
}

}  // namespace
}  // namespace syncline::layout
