// For tests: plans made by cutting the same array twice, once into tensors and once, in another
// order of its slabs, into parameters. So the bytes of both are known without any plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/plan.h"

namespace syncline::layout {

struct PlanParts {
  std::vector<TensorSpec> parameters;
  std::vector<TensorSpec> tensors;
  std::vector<Piece> pieces;
};

base::Result<Plan> BuildParts(const PlanParts& parts);

// Inside a RapidCheck property: a number of [begin, end), uniform (inRange alone gives small ones
// in the first runs).
std::uint64_t Draw(std::uint64_t begin, std::uint64_t end);

struct RandomPlan {
  PlanParts parts;
  std::vector<std::vector<std::byte>> tensor_bytes;
  std::vector<std::vector<std::byte>> parameter_bytes;  // after all tensors are scattered
};

// Inside a RapidCheck property. Some tensors are only partly held, some elements also lie in a
// parameter of which they are not owned; dtypes have from 4 to 64 bits.
RandomPlan MakeRandomPlan();

// Each element of the box, in row-major order, as its number in the array.
std::vector<std::uint64_t> ElementsOf(tensor::Shape shape, const Box& box);

}  // namespace syncline::layout
