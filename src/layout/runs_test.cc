#include "layout/runs.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "layout/random_plan.h"

namespace syncline::layout {
namespace {

std::vector<std::byte> Numbered(std::size_t bytes) {
  std::vector<std::byte> numbered(bytes);
  for (std::size_t i = 0; i < bytes; ++i) numbered[i] = static_cast<std::byte>(1 + i % 251);
  return numbered;
}

// Of a box of a random array into another one, in parts of a random size.
RC_GTEST_PROP(RunsTest, PartsAreTheWholeAndOverlapNowhere, ()) {
  Box from;
  Box to;
  std::vector<std::uint64_t> from_shape;
  std::vector<std::uint64_t> to_shape;
  const std::uint64_t dimensions = Draw(1, 4);
  for (std::uint64_t d = 0; d < dimensions; ++d) {
    const std::uint64_t extent = Draw(1, 9);
    for (auto* const side : {&from, &to}) {
      const std::uint64_t begin = Draw(0, 3);
      side->begin.push_back(begin);
      side->end.push_back(begin + extent);
      (side == &from ? from_shape : to_shape).push_back(begin + extent + Draw(0, 3));
    }
  }
  const Runs runs = FindRuns(tensor::Dtype::kBF16, {from_shape, from}, {to_shape, to});
  const std::vector<std::byte> source = Numbered(2 * WholeBox(from_shape).elements());
  std::vector<std::byte> expected(2 * WholeBox(to_shape).elements());
  CopyRuns(runs, source.data(), expected.data());

  const std::uint64_t bytes = Draw(1, 200);
  std::vector<std::byte> found(expected.size());
  std::uint64_t sum = 0;
  for (const Runs& part : CutRuns(runs, bytes)) {
    StreamRuns(part, source.data(), found.data());
    sum += RunBytes(part);
  }
  RC_ASSERT(found == expected);
  RC_ASSERT(sum == 2 * from.elements());
}

TEST(RunsTest, PartsAreAboutAsLargeAsAsked) {
  const std::vector<std::uint64_t> shape = {100, 64};
  const Box left = {{0, 0}, {100, 16}};
  const Runs rows = FindRuns(tensor::Dtype::kU8, {shape, left}, {shape, left});
  EXPECT_EQ(CutRuns(rows, 160).size(), 10);
  EXPECT_EQ(CutRuns(rows, 800).size(), 1);
  EXPECT_EQ(CutRuns(rows, 1).size(), 100);
  const Box whole = WholeBox(shape);
  const Runs one = FindRuns(tensor::Dtype::kU8, {shape, whole}, {shape, whole});
  EXPECT_EQ(CutRuns(one, 1000).size(), 7);
}

}  // namespace
}  // namespace syncline::layout
