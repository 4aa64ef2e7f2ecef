// Plans linear modules, quantised or not. No tensor types of torch here.
//
// A module that is not quantised is one parameter, `MODULE.weight`. A quantised one is one unit
// (quant/units.h): a parameter `MODULE.SLOT` for each slot of the scheme, from the checkpoint
// tensors `PART.SLOT` of the modules that are stacked in it, divided among ranks as the matrix is.
// A bias is `MODULE.bias`, never quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "layout/plan.h"
#include "layout/shard_planner.h"
#include "quant/config.h"
#include "quant/units.h"

namespace syncline::model {

// Numbers of parameters in the plan and of units; npos where the model has none.
inline constexpr std::size_t kNone = layout::Plan::npos;
static_assert(kNone == quant::Units::npos);

struct LinearParameters {
  std::size_t weight = kNone;  // where it is not quantised
  std::size_t unit = kNone;    // where it is
  std::size_t bias = kNone;

  bool there() const { return weight != kNone || unit != kNone; }
};

// Not thread-safe.
class LinearPlanner {
 public:
  using Part = layout::ShardPlanner::Part;

  // Both must outlive it. `shards` is for everything that is no linear module.
  LinearPlanner(layout::ShardPlanner& shards, const quant::QuantConfig& quantisation);

  layout::ShardPlanner& shards() { return shards_; }
  // Of weights that are not quantised, and of what is computed with quantised ones.
  tensor::Dtype activation() const { return activation_; }

  // Column parallel: this rank's share of the rows of each part, one below the other. Part::tensor
  // is the name of the checkpoint's module.
  LinearParameters Columns(const std::string& module, const std::vector<Part>& parts,
                           std::uint64_t columns, bool bias);
  // Row parallel; the bias is whole on each rank.
  LinearParameters Rows(const std::string& module, std::uint64_t rows, std::uint64_t columns,
                        std::uint64_t unit_columns, bool bias);
  // All of it on every rank.
  LinearParameters Replicated(const std::string& module, std::uint64_t rows, std::uint64_t columns,
                              bool bias);

  // The routed experts of a layer (ShardPlanner::Experts). Units are called `prefix`w13 and
  // `prefix`w2.
  struct Experts {
    LinearParameters gate_up;  // of each expert: gate over up
    LinearParameters down;
  };
  Experts RoutedExperts(const std::string& prefix, std::uint64_t experts, std::uint64_t width,
                        std::uint64_t hidden);

  // The units of the plan that was built. kIncompatible where only some parts of one matrix are
  // quantised; kInvalidArgument where the scheme cannot hold a matrix on this rank.
  base::Result<quant::Units> Units(const layout::Plan& plan) &&;

 private:
  // Are the parts of a matrix quantised? Remembers an error where they do not agree.
  bool Quantised(const std::string& module, const std::vector<std::string>& parts);
  // Plans each slot of a unit with `plan(name of the slot, its blocks)`, which returns the number
  // of the parameter.
  template <typename PlanSlot>
  std::size_t AddUnit(const std::string& module, quant::Matrix matrix, const PlanSlot& plan);

  layout::ShardPlanner& shards_;
  const quant::QuantConfig& quantisation_;
  tensor::Dtype activation_;
  std::vector<quant::Unit> units_;
  base::Status status_;
};

}  // namespace syncline::model
