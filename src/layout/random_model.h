// For tests: a model of random sizes, as the plans of all ranks of an engine, and its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/plan.h"
#include "layout/shard.h"

namespace syncline::layout {

struct RandomModel {
  std::vector<Plan> ranks;
  // By tensor of the plans, whose order is the same on all ranks.
  std::vector<std::vector<std::byte>> weights;
};

// Inside a RapidCheck property: key heads below, equal to and above the number of ranks, an odd
// vocabulary, experts, a tied head, biases.
RandomModel MakeRandomModel();

// Memory of each parameter of a plan, full of `fill`.
std::vector<std::vector<std::byte>> MakeMemory(const Plan& plan, std::byte fill);

}  // namespace syncline::layout
