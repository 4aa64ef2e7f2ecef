#include "layout/random_plan.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>

namespace syncline::layout {
namespace {

using tensor::Dtype;

struct Kind {
  Dtype dtype;
  std::uint64_t group;  // elements that are cut together
  std::uint64_t bytes;  // of a group
};
constexpr Kind kKinds[] = {{Dtype::kBF16, 1, 2}, {Dtype::kU8, 1, 1}, {Dtype::kF32, 1, 4},
                           {Dtype::kI64, 1, 8},  {Dtype::kF4, 2, 1}, {Dtype::kF6E2M3, 4, 3}};

// Disjoint boxes that make up `whole`, in no particular order.
std::vector<Box> CutUp(const Box& whole) {
  std::vector<Box> boxes = {whole};
  const std::uint64_t cuts = Draw(0, 8);
  for (std::uint64_t i = 0; i < cuts; ++i) {
    if (whole.begin.empty()) break;
    const auto which = Draw(0, boxes.size());
    const auto d = Draw(0, whole.begin.size());
    Box& first = boxes[which];
    if (first.end[d] - first.begin[d] < 2) continue;
    Box second = first;
    first.end[d] = second.begin[d] = Draw(first.begin[d] + 1, first.end[d]);
    boxes.push_back(second);
  }
  std::ranges::reverse(boxes);
  return boxes;
}

std::optional<Box> Intersection(const Box& a, const Box& b) {
  Box common = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    common.end[d] = std::min(a.end[d], b.end[d]);
    if (common.begin[d] >= common.end[d]) return std::nullopt;
  }
  return common;
}

// `box` with its coordinates counted from where `frame` begins.
Box Inside(const Box& frame, Box box) {
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    box.begin[d] -= frame.begin[d];
    box.end[d] -= frame.begin[d];
  }
  return box;
}

std::vector<std::uint64_t> Extents(const Box& box) { return Inside(box, box).end; }

// One array, counted in groups. In the second order the slabs of `dimension` stand differently.
struct Array {
  Kind kind;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
  struct Slab {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t moved_to;  // where it begins in the second order
  };
  std::size_t dimension = 0;
  std::vector<Slab> slabs;

  std::vector<std::byte> Extract(const Box& box, bool second_order) const {
    std::vector<std::byte> extracted;
    for (std::uint64_t element : ElementsOf(shape, box)) {
      if (second_order && !shape.empty()) element = FirstOrder(element);
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(element * kind.bytes);
      extracted.insert(extracted.end(), from, from + static_cast<std::ptrdiff_t>(kind.bytes));
    }
    return extracted;
  }

 private:
  std::uint64_t FirstOrder(std::uint64_t element) const {
    std::uint64_t stride = 1;
    for (std::size_t d = dimension + 1; d < shape.size(); ++d) stride *= shape[d];
    const std::uint64_t place = element / stride % shape[dimension];
    for (const Slab& slab : slabs) {
      if (place < slab.moved_to || place >= slab.moved_to + slab.end - slab.begin) continue;
      return element + (slab.begin - slab.moved_to) * stride;
    }
    return element;
  }
};

Array MakeArray() {
  Array array{.kind = kKinds[Draw(0, std::size(kKinds))]};
  const auto rank = Draw(array.kind.group == 1 ? 0 : 1, 4);
  for (std::size_t d = 0; d < rank; ++d) {
    array.shape.push_back(Draw(1, 7));
  }
  const std::size_t size = WholeBox(array.shape).elements() * array.kind.bytes;
  std::mt19937_64 random(Draw(0, 1 << 30));
  for (std::size_t i = 0; i < size; ++i) array.bytes.push_back(static_cast<std::byte>(random()));
  if (rank == 0) return array;
  array.dimension = Draw(0, rank);
  const std::uint64_t length = array.shape[array.dimension];
  const std::uint64_t a = Draw(0, length + 1);
  const std::uint64_t b = Draw(a, length + 1);
  // [0, a) [a, b) [b, length) become [b, length) [0, a) [a, b), or stay.
  if (Draw(0, 2) == 1) {
    array.slabs = {{0, a, length - b}, {a, b, length - b + a}, {b, length, 0}};
  } else {
    array.slabs = {{0, length, 0}};
  }
  return array;
}

// Counts the innermost dimension in elements, and puts dimensions of size 1 at random places.
class Decoration {
 public:
  Decoration(const Kind& kind, std::size_t rank) : kind_(kind) {
    const std::uint64_t count = Draw(0, 3);
    for (std::uint64_t i = 0; i < count; ++i) {
      places_.push_back(Draw(0, rank + places_.size() + 1));
    }
  }

  std::vector<std::uint64_t> Apply(std::vector<std::uint64_t> values, std::uint64_t unit) const {
    if (!values.empty()) values.back() *= kind_.group;
    for (const std::size_t place : places_) {
      values.insert(values.begin() + static_cast<std::ptrdiff_t>(place), unit);
    }
    return values;
  }
  TensorSpec Apply(const std::string& name, const Box& box) const {
    return {.name = name, .dtype = kind_.dtype, .shape = Apply(Extents(box), 1)};
  }
  Box Apply(const Box& box) const { return {Apply(box.begin, 0), Apply(box.end, 1)}; }

 private:
  Kind kind_;
  std::vector<std::size_t> places_;
};

class Maker {
 public:
  explicit Maker(RandomPlan& plan) : plan_(plan) {}

  void Add(const Array& array) {
    const Box whole = WholeBox(array.shape);
    struct Parameter {
      std::size_t index;
      Box box;
      Decoration decoration;
    };
    std::vector<Parameter> parameters;
    for (const Box& box : CutUp(whole)) {
      if (Draw(0, 6) == 5) continue;  // on another rank
      const Decoration decoration(array.kind, array.shape.size());
      parameters.push_back(
          {AddParameter(array.Extract(box, true), box, decoration), box, decoration});
    }
    for (const Box& box : CutUp(whole)) {
      const Decoration decoration(array.kind, array.shape.size());
      std::vector<Piece> pieces;
      for (const Parameter& parameter : parameters) {
        for (const auto& [from, to] : Shared(array, box, parameter.box)) {
          pieces.push_back({.tensor = plan_.parts.tensors.size(),
                            .parameter = parameter.index,
                            .source = decoration.Apply(Inside(box, from)),
                            .destination = parameter.decoration.Apply(Inside(parameter.box, to))});
        }
      }
      if (Draw(0, 4) == 3) pieces.push_back(AddCopy(array, box, decoration));
      if (pieces.empty()) continue;
      plan_.parts.pieces.insert(plan_.parts.pieces.begin(), pieces.begin(), pieces.end());
      plan_.parts.tensors.push_back(
          decoration.Apply(fmt::format("tensor.{}", plan_.parts.tensors.size()), box));
      plan_.tensor_bytes.push_back(array.Extract(box, false));
    }
  }

 private:
  std::size_t AddParameter(std::vector<std::byte> bytes, const Box& box,
                           const Decoration& decoration) {
    const std::size_t index = plan_.parts.parameters.size();
    plan_.parts.parameters.push_back(decoration.Apply(fmt::format("parameter.{}", index), box));
    plan_.parameter_bytes.push_back(std::move(bytes));
    return index;
  }

  // A parameter that holds some of the tensor once more.
  Piece AddCopy(const Array& array, const Box& tensor, const Decoration& decoration) {
    const Box part = CutUp(tensor).front();
    const Decoration own(array.kind, array.shape.size());
    return {.tensor = plan_.parts.tensors.size(),
            .parameter = AddParameter(array.Extract(part, false), part, own),
            .source = decoration.Apply(Inside(tensor, part)),
            .destination = own.Apply(Inside(part, part)),
            .owner = false};
  }

  // What a box in the first order and one in the second have in common, in both orders.
  static std::vector<std::pair<Box, Box>> Shared(const Array& array, const Box& first,
                                                 const Box& second) {
    if (array.shape.empty()) return {{first, second}};
    std::vector<std::pair<Box, Box>> shared;
    for (const Array::Slab& slab : array.slabs) {
      Box slab_box = WholeBox(array.shape);
      slab_box.begin[array.dimension] = slab.begin;
      slab_box.end[array.dimension] = slab.end;
      const auto moved = [&](Box box, std::uint64_t by) {
        box.begin[array.dimension] += by;
        box.end[array.dimension] += by;
        return box;
      };
      const auto from = Intersection(first, slab_box);
      if (!from) continue;
      const auto to = Intersection(moved(*from, slab.moved_to - slab.begin), second);
      if (to) shared.emplace_back(moved(*to, slab.begin - slab.moved_to), *to);
    }
    return shared;
  }

  RandomPlan& plan_;
};

}  // namespace

base::Result<Plan> BuildParts(const PlanParts& parts) {
  PlanBuilder builder;
  for (const TensorSpec& spec : parts.parameters) builder.AddParameter(spec);
  for (const TensorSpec& spec : parts.tensors) builder.AddTensor(spec);
  for (const Piece& piece : parts.pieces) builder.AddPiece(piece);
  return std::move(builder).Build();
}

std::uint64_t Draw(std::uint64_t begin, std::uint64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
}

RandomPlan MakeRandomPlan() {
  RandomPlan plan;
  Maker maker(plan);
  const std::uint64_t arrays = Draw(1, 4);
  for (std::uint64_t i = 0; i < arrays; ++i) maker.Add(MakeArray());
  return plan;
}

std::vector<std::uint64_t> ElementsOf(tensor::Shape shape, const Box& box) {
  std::vector<std::uint64_t> elements = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::uint64_t> longer;
    for (const std::uint64_t element : elements) {
      for (std::uint64_t i = box.begin[d]; i < box.end[d]; ++i) {
        longer.push_back(element * shape[d] + i);
      }
    }
    elements = std::move(longer);
  }
  return elements;
}

}  // namespace syncline::layout
