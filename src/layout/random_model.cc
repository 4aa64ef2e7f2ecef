#include "layout/random_model.h"

#include <rapidcheck.h>

#include <random>

#include "layout/random_plan.h"
#include "layout/shard_planner.h"

namespace syncline::layout {
namespace {

using tensor::Dtype;

struct Sizes {
  std::uint32_t ranks = static_cast<std::uint32_t>(Draw(1, 9));
  std::uint32_t expert_groups = 1;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_size = 2 * Draw(1, 4);
  std::uint64_t hidden = Draw(1, 9);
  std::uint64_t vocabulary = Draw(1, 300);
  std::uint64_t wide = 0;
  std::uint64_t experts = 0;
  bool bias = Draw(0, 2) == 1;
  bool tied = Draw(0, 2) == 1;

  Sizes() {
    std::vector<std::uint32_t> divisors;
    for (std::uint32_t d = 1; d <= ranks; ++d) {
      if (ranks % d == 0) divisors.push_back(d);
    }
    const auto one_of = [&] { return divisors[Draw(0, divisors.size())]; };
    expert_groups = one_of();
    heads = ranks * Draw(1, 3);
    kv_heads = Draw(0, 2) == 1 ? heads : one_of();
    wide = ranks * Draw(1, 4);
    experts = expert_groups * Draw(1, 3);
  }
};

base::Result<Plan> PlanOf(const Sizes& sizes, std::uint32_t rank) {
  ShardPlanner planner({rank, sizes.ranks, sizes.expert_groups}, [](std::string_view name) {
    return name.ends_with("norm") ? Dtype::kF32 : Dtype::kBF16;
  });
  planner.Vocabulary("embed", sizes.vocabulary, sizes.hidden);
  planner.Replicated("norm", {sizes.hidden});
  const auto qkv = [&](const std::string& parameter, const std::string& kind,
                       const ShardPlanner::Shape& columns) {
    planner.Columns(parameter,
                    {{"q" + kind, sizes.heads, sizes.head_size},
                     {"k" + kind, sizes.kv_heads, sizes.head_size, true, "num_key_value_heads"},
                     {"v" + kind, sizes.kv_heads, sizes.head_size, true, "num_key_value_heads"}},
                    columns);
  };
  qkv("qkv.weight", ".weight", {sizes.hidden});
  if (sizes.bias) qkv("qkv.bias", ".bias", {});
  planner.Rows("o", sizes.hidden, sizes.heads * sizes.head_size, sizes.head_size);
  planner.Columns("gate_up", {{"gate", sizes.wide}, {"up", sizes.wide}}, {sizes.hidden});
  planner.Rows("down", sizes.hidden, sizes.wide);
  planner.Experts("experts.", sizes.experts, sizes.wide, sizes.hidden);
  planner.Derived("absorbed", Dtype::kBF16, {3, 5});
  if (sizes.tied) {
    planner.Alias("head", "embed");
  } else {
    planner.Vocabulary("head", sizes.vocabulary, sizes.hidden);
  }
  return std::move(planner).Build();
}

}  // namespace

RandomModel MakeRandomModel() {
  const Sizes sizes;
  RandomModel model;
  for (std::uint32_t rank = 0; rank < sizes.ranks; ++rank) {
    auto plan = PlanOf(sizes, rank);
    if (!plan) RC_FAIL(plan.error().message);
    model.ranks.push_back(*std::move(plan));
  }
  std::mt19937_64 random(Draw(0, 1 << 30));
  for (const TensorSpec& tensor : model.ranks[0].tensors()) {
    auto& bytes = model.weights.emplace_back(tensor.bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }
  return model;
}

std::vector<std::vector<std::byte>> MakeMemory(const Plan& plan, std::byte fill) {
  std::vector<std::vector<std::byte>> memory;
  for (const TensorSpec& parameter : plan.parameters()) {
    memory.emplace_back(parameter.bytes(), fill);
  }
  return memory;
}

}  // namespace syncline::layout
