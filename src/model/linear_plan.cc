#include "model/linear_plan.h"

#include <fmt/core.h>

#include <utility>

namespace syncline::model {
namespace {

using base::Code;
using layout::Blocks;
using layout::ShardPlanner;
using Part = ShardPlanner::Part;

// The checkpoint tensors of the parts' modules.
std::vector<Part> TensorsOf(std::vector<Part> parts, const std::string& kind) {
  for (Part& part : parts) part.tensor += "." + kind;
  return parts;
}

Blocks BlocksOf(const quant::Slot& slot) {
  return {.rows = slot.block_rows, .columns = slot.block_columns, .dtype = slot.load.dtype};
}

}  // namespace

LinearPlanner::LinearPlanner(ShardPlanner& shards, const quant::QuantConfig& quantisation)
    : shards_(shards),
      quantisation_(quantisation),
      activation_(shards.DtypeOfTensor("model.embed_tokens.weight")) {}

bool LinearPlanner::Quantised(const std::string& module, const std::vector<std::string>& parts) {
  if (quantisation_.scheme == nullptr) return false;
  const bool first = quantisation_.Applies(parts.front());
  for (const std::string& part : parts) {
    if (quantisation_.Applies(part) == first || !status_) continue;
    status_ = base::Fail(
        Code::kIncompatible,
        fmt::format("quantization_config: {} and {} are parts of one matrix ({}), but only {} is "
                    "quantised",
                    parts.front(), part, module, first ? parts.front() : part));
  }
  return first;
}

template <typename PlanSlot>
std::size_t LinearPlanner::AddUnit(const std::string& module, quant::Matrix matrix,
                                   const PlanSlot& plan) {
  matrix.activation = activation_;
  quant::Unit unit{.module = module,
                   .scheme = quantisation_.scheme,
                   .matrix = std::move(matrix),
                   .parameters = {}};
  for (const quant::Slot& slot : unit.scheme->Slots(unit.matrix)) {
    unit.parameters.push_back(plan(slot.name, BlocksOf(slot)));
  }
  units_.push_back(std::move(unit));
  return units_.size() - 1;
}

LinearParameters LinearPlanner::Columns(const std::string& module, const std::vector<Part>& parts,
                                        std::uint64_t columns, bool bias) {
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const Part& part : parts) names.push_back(part.tensor);
  LinearParameters linear;
  const auto plan = [&](const std::string& kind, const Blocks& blocks) {
    return shards_.Columns(module + "." + kind, TensorsOf(parts, kind), {columns}, blocks);
  };
  if (Quantised(module, names)) {
    quant::Matrix matrix{.columns = columns};
    for (const Part& part : parts) matrix.part_rows.push_back(shards_.OwnRows(part));
    linear.unit = AddUnit(module, std::move(matrix), plan);
  } else {
    linear.weight = plan("weight", {});
  }
  if (bias) linear.bias = shards_.Columns(module + ".bias", TensorsOf(parts, "bias"), {});
  return linear;
}

LinearParameters LinearPlanner::Rows(const std::string& module, std::uint64_t rows,
                                     std::uint64_t columns, std::uint64_t unit_columns, bool bias) {
  LinearParameters linear;
  const auto plan = [&](const std::string& kind, const Blocks& blocks) {
    return shards_.Rows(module + "." + kind, rows, columns, unit_columns, blocks);
  };
  if (Quantised(module, {module})) {
    const std::uint64_t own = shards_.OwnColumns(module, columns, unit_columns);
    linear.unit = AddUnit(module, {.part_rows = {rows}, .columns = own}, plan);
  } else {
    linear.weight = plan("weight", {});
  }
  if (bias) linear.bias = shards_.Replicated(module + ".bias", {rows});
  return linear;
}

LinearParameters LinearPlanner::Replicated(const std::string& module, std::uint64_t rows,
                                           std::uint64_t columns, bool bias) {
  LinearParameters linear;
  const auto plan = [&](const std::string& kind, const Blocks& blocks) {
    return shards_.Replicated(module + "." + kind, {rows, columns}, blocks);
  };
  if (Quantised(module, {module})) {
    linear.unit = AddUnit(module, {.part_rows = {rows}, .columns = columns}, plan);
  } else {
    linear.weight = plan("weight", {});
  }
  if (bias) linear.bias = shards_.Replicated(module + ".bias", {rows});
  return linear;
}

LinearPlanner::Experts LinearPlanner::RoutedExperts(const std::string& prefix,
                                                    std::uint64_t experts, std::uint64_t width,
                                                    std::uint64_t hidden) {
  std::vector<std::string> modules;
  for (std::uint64_t e = 0; quantisation_.scheme != nullptr && e < experts; ++e) {
    for (const char* name : {"gate", "up", "down"}) {
      modules.push_back(fmt::format("{}{}.{}_proj", prefix, e, name));
    }
  }
  Experts planned;
  if (!Quantised(prefix + "w13", modules)) {
    const auto to = shards_.Experts(prefix, experts, width, hidden);
    planned.gate_up.weight = to.gate_up;
    planned.down.weight = to.down;
    return planned;
  }
  const std::uint64_t local = shards_.OwnExperts(experts);
  const std::uint64_t own = shards_.OwnWidth(width);
  // Both matrices have the same slots, which are planned together.
  std::vector<std::size_t> down;
  planned.gate_up.unit =
      AddUnit(prefix + "w13", {.experts = local, .part_rows = {own, own}, .columns = hidden},
              [&](const std::string& kind, const Blocks& blocks) {
                const auto to = shards_.Experts(prefix, experts, width, hidden, kind, blocks);
                down.push_back(to.down);
                return to.gate_up;
              });
  std::size_t next = 0;
  planned.down.unit =
      AddUnit(prefix + "w2", {.experts = local, .part_rows = {hidden}, .columns = own},
              [&](const std::string&, const Blocks&) { return down.at(next++); });
  return planned;
}

base::Result<quant::Units> LinearPlanner::Units(const layout::Plan& plan) && {
  SYNCLINE_TRY(std::move(status_));
  auto units = quant::Units::Create(plan, std::move(units_));
  const std::uint32_t ranks = shards_.shard().size;
  if (units || units.error().code != Code::kInvalidArgument || ranks == 1) return units;
  return base::Annotate(units.error(), fmt::format("cannot be divided among {} ranks", ranks));
}

}  // namespace syncline::model
