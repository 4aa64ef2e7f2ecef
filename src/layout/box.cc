#include "layout/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace syncline::layout {
namespace {

bool Overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    if (a.begin[d] >= b.end[d] || b.begin[d] >= a.end[d]) return false;
  }
  return true;
}

// The dimension in which the boxes begin at the most different places.
std::size_t MostDividedDimension(std::span<const Box* const> boxes) {
  std::size_t best = 0;
  std::size_t best_places = 0;
  std::vector<std::uint64_t> places(boxes.size());
  for (std::size_t d = 0; d < boxes[0]->begin.size(); ++d) {
    std::ranges::transform(boxes, places.begin(), [d](const Box* box) { return box->begin[d]; });
    std::ranges::sort(places);
    const auto repeated = std::ranges::unique(places);
    const std::size_t distinct = places.size() - repeated.size();
    if (distinct > best_places) {
      best_places = distinct;
      best = d;
    }
  }
  return best;
}

// The first gap that starts with the coordinates in `prefix`; `boxes` are those that hold them.
// A first gap is at 0 or where a box ends, in each dimension, so no other place is looked at.
bool FindGap(tensor::Shape shape, std::span<const Box* const> boxes,
             std::vector<std::uint64_t>& prefix) {
  const std::size_t d = prefix.size();
  if (boxes.empty()) {
    prefix.resize(shape.size(), 0);
    return true;
  }
  if (d == shape.size()) return false;
  std::vector<std::uint64_t> places = {0};
  for (const Box* box : boxes) places.push_back(box->end[d]);
  std::ranges::sort(places);
  places.erase(std::ranges::unique(places).begin(), places.end());
  std::vector<const Box*> inside;
  for (const std::uint64_t place : places) {
    if (place >= shape[d]) break;
    inside.clear();
    std::ranges::copy_if(boxes, std::back_inserter(inside), [d, place](const Box* box) {
      return box->begin[d] <= place && place < box->end[d];
    });
    prefix.push_back(place);
    if (FindGap(shape, inside, prefix)) return true;
    prefix.pop_back();
  }
  return false;
}

}  // namespace

std::uint64_t Box::elements() const {
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) count *= end[d] - begin[d];
  return count;
}

Box WholeBox(tensor::Shape shape) {
  return {.begin = std::vector<std::uint64_t>(shape.size(), 0),
          .end = {shape.begin(), shape.end()}};
}

std::string BoxText(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < std::min(box.begin.size(), box.end.size()); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.begin[d], box.end[d]);
  }
  return text + "]";
}

std::optional<std::pair<std::size_t, std::size_t>> FindOverlap(std::span<const Box* const> boxes) {
  if (boxes.size() < 2) return std::nullopt;
  if (boxes[0]->begin.empty()) return std::pair<std::size_t, std::size_t>(0, 1);
  const std::size_t d = MostDividedDimension(boxes);
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return boxes[i]->begin[d]; });
  // A sweep along d; `open` are the boxes that reach beyond the place where the next one begins.
  std::vector<std::size_t> open;
  for (const std::size_t i : order) {
    std::erase_if(open, [&](std::size_t j) { return boxes[j]->end[d] <= boxes[i]->begin[d]; });
    for (const std::size_t j : open) {
      if (Overlap(*boxes[i], *boxes[j])) return std::minmax(i, j);
    }
    open.push_back(i);
  }
  return std::nullopt;
}

std::optional<std::vector<std::uint64_t>> FirstGap(tensor::Shape shape,
                                                   std::span<const Box* const> boxes) {
  std::vector<std::uint64_t> place;
  if (!FindGap(shape, boxes, place)) return std::nullopt;
  return place;
}

}  // namespace syncline::layout
