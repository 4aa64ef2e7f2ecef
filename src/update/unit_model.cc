#include "update/unit_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "quant/fp8_block.h"

namespace syncline::update {
namespace {

using layout::PlanBuilder;
using layout::TensorSpec;
using layout::WholeBox;
using tensor::Dtype;

template <typename T>
T OrDie(base::Result<T> result) {
  if (!result) std::abort();
  return *std::move(result);
}

// Rows of the units' parts; the last block of each is short.
constexpr std::uint64_t kRowsQ = 130;
constexpr std::uint64_t kRowsK = 70;
constexpr std::uint64_t kColumns = 200;
constexpr std::uint64_t kExperts = 3;
constexpr std::uint64_t kRowsW = 140;

std::uint64_t Blocks(std::uint64_t elements) { return (elements + 127) / 128; }

// Checkpoint tensors `name`.weight and `name`.weight_scale_inv in rows of the unit's parameters.
struct Fp8Unit {
  PlanBuilder& builder;
  std::size_t weight;
  std::size_t scale;
  std::uint64_t row = 0;
  std::uint64_t block = 0;

  // Expert < 0: two dimensions.
  void Add(const std::string& name, std::uint64_t rows, std::int64_t expert = -1) {
    const std::vector<std::uint64_t> shape = {rows, kColumns};
    const std::vector<std::uint64_t> blocks = {Blocks(rows), Blocks(kColumns)};
    AddPart({name + ".weight", Dtype::kF8E4M3, shape}, weight, row, expert);
    AddPart({name + ".weight_scale_inv", Dtype::kF32, blocks}, scale, block, expert);
    row += rows;
    block += Blocks(rows);
  }

 private:
  void AddPart(const TensorSpec& spec, std::size_t parameter, std::uint64_t begin,
               std::int64_t expert) {
    layout::Box box = WholeBox(spec.shape);
    box.begin[0] += begin;
    box.end[0] += begin;
    if (expert >= 0) {
      const auto first = static_cast<std::uint64_t>(expert);
      box.begin.insert(box.begin.begin(), first);
      box.end.insert(box.end.begin(), first + 1);
    }
    builder.AddPiece({.tensor = builder.AddTensor(spec),
                      .parameter = parameter,
                      .source = WholeBox(spec.shape),
                      .destination = box});
  }
};

std::vector<std::uint64_t> WithExperts(std::uint64_t experts, std::vector<std::uint64_t> shape) {
  if (experts > 0) shape.insert(shape.begin(), experts);
  return shape;
}

}  // namespace

UnitModel::UnitModel(const std::string& prefix) {
  config_.vocabulary = 8;
  config_.max_positions = 64;
  PlanBuilder builder;
  const std::size_t abc = builder.AddParameter({prefix + "abc", Dtype::kBF16, {10, 5}});
  std::uint64_t row = 0;
  for (const auto& [name, rows] :
       {std::pair("a", std::uint64_t{4}), {"b", std::uint64_t{2}}, {"c", std::uint64_t{3}}}) {
    const std::vector<std::uint64_t> shape = {rows, 5};
    builder.AddPiece({.tensor = builder.AddTensor({prefix + name, Dtype::kBF16, shape}),
                      .parameter = abc,
                      .source = WholeBox(shape),
                      .destination = {{row, 0}, {row + rows, 5}}});
    row += rows;
  }
  builder.AddFill({.parameter = abc, .box = {{9, 0}, {10, 5}}});
  builder.AddWhole(prefix + "plain", prefix + "plain", Dtype::kF32, {7});
  builder.AddWhole(prefix + "tied", prefix + "tied", Dtype::kBF16, {3, 4});
  builder.Alias(prefix + "twin", prefix + "tied");
  builder.Skip(prefix + "buffers.*");

  std::vector<quant::Unit> units;
  const auto begin_unit = [&](const std::string& module, std::vector<std::uint64_t> part_rows,
                              std::uint64_t experts, std::shared_ptr<const quant::Scheme> scheme) {
    const std::uint64_t rows = std::accumulate(part_rows.begin(), part_rows.end(), 0ULL);
    std::uint64_t blocks = 0;
    for (const std::uint64_t part : part_rows) blocks += Blocks(part);
    const std::size_t weight = builder.AddParameter(
        {prefix + module + ".weight", Dtype::kF8E4M3, WithExperts(experts, {rows, kColumns})});
    const std::size_t scale =
        builder.AddParameter({prefix + module + ".weight_scale_inv", Dtype::kF32,
                              WithExperts(experts, {blocks, Blocks(kColumns)})});
    quant::Unit& unit = units.emplace_back();
    unit.module = prefix + module;
    unit.scheme = std::move(scheme);
    unit.matrix.experts = experts;
    unit.matrix.part_rows = std::move(part_rows);
    unit.matrix.columns = kColumns;
    unit.parameters = {weight, scale};
    return Fp8Unit{builder, weight, scale};
  };
  const auto packed = quant::Fp8BlockUe8m0();
  Fp8Unit qk = begin_unit("qk", {kRowsQ, kRowsK}, 0, packed);
  qk.Add(prefix + "q", kRowsQ);
  qk.Add(prefix + "k", kRowsK);
  Fp8Unit experts = begin_unit("gu", {kRowsK, kRowsQ}, kExperts, packed);
  for (std::uint64_t i = 0; i < kExperts; ++i) {
    experts.row = experts.block = 0;
    const std::string number = std::to_string(i);
    experts.Add(prefix + "g." + number, kRowsK, static_cast<std::int64_t>(i));
    experts.Add(prefix + "u." + number, kRowsQ, static_cast<std::int64_t>(i));
  }
  begin_unit("w", {kRowsW}, 0, quant::Fp8Block()).Add(prefix + "w", kRowsW);
  absorbed_ = builder.AddDerived({prefix + "absorbed", Dtype::kBF16, {kRowsQ + kRowsK, kColumns}});
  plan_ = OrDie(std::move(builder).Build());
  units_ = OrDie(quant::Units::Create(plan_, std::move(units)));
  parameters_.emplace(OrDie(model::Parameters::Create(plan_, units_)));
}

base::Status UnitModel::Derive(std::span<const base::MutableByteSpan> memory) {
  const quant::Unit& unit = units_.units()[0];
  std::vector<base::ByteSpan> slots;
  for (const std::size_t parameter : unit.parameters) slots.emplace_back(memory[parameter]);
  unit.scheme->Dequantise(unit.matrix, slots, quant::Layout::kRuntime, 0, 0, unit.matrix.rows(),
                          reinterpret_cast<std::uint16_t*>(memory[absorbed_].data()));
  return {};
}

base::Status UnitModel::Forward(const model::Batch&, std::span<float> logits) {
  std::ranges::fill(logits, 1.0F);
  return {};
}

UnitModel::Weights UnitModel::RandomWeights(std::uint64_t seed) const {
  std::mt19937_64 random(seed);
  Weights weights;
  for (const TensorSpec& spec : plan_.tensors()) {
    std::vector<std::byte>& bytes = weights.emplace_back(spec.bytes());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(random());
      // No NaN: e4m3 has it at 0x7f.
      if (spec.dtype == Dtype::kF8E4M3 && (bytes[i] & std::byte{0x7f}) == std::byte{0x7f}) {
        bytes[i] = std::byte{1};
      }
    }
    if (!spec.name.ends_with("_scale_inv")) continue;
    // Positive scales as trainers make them.
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      const float scale = std::uniform_real_distribution<float>(1e-4F, 1e-2F)(random);
      std::memcpy(bytes.data() + i, &scale, sizeof(scale));
    }
  }
  return weights;
}

void UnitModel::Load(const Weights& weights) {
  std::vector<base::MutableByteSpan> parts;
  for (const base::MutableByteSpan slot : parameters_->live()) {
    std::ranges::fill(slot, std::byte{0});
    parts.push_back(slot.first(plan_.parameters()[parts.size()].bytes()));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) plan_.Scatter(i, weights[i], parts);
  base::ThreadPool pool(1);
  units_.ProcessAll(parameters_->live(), pool);
  if (!Derive(parameters_->live())) std::abort();
}

UnitModel::Weights UnitModel::Exported() {
  base::ThreadPool pool(1);
  std::vector<std::vector<std::byte>> slots = State();
  const std::vector<base::MutableByteSpan> copies(slots.begin(), slots.end());
  units_.RestoreAll(copies, pool);
  std::vector<base::ByteSpan> parts;
  for (const base::MutableByteSpan slot : copies) {
    parts.push_back(slot.first(plan_.parameters()[parts.size()].bytes()));
  }
  Weights weights;
  for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
    plan_.Gather(i, parts, weights.emplace_back(plan_.tensors()[i].bytes()));
  }
  return weights;
}

std::vector<std::vector<std::byte>> UnitModel::State() {
  std::vector<std::vector<std::byte>> state;
  for (const base::MutableByteSpan slot : parameters_->live()) {
    state.emplace_back(slot.begin(), slot.end());
  }
  return state;
}

std::vector<const std::byte*> UnitModel::Addresses() {
  std::vector<const std::byte*> addresses;
  for (const base::MutableByteSpan slot : parameters_->live()) addresses.push_back(slot.data());
  return addresses;
}

}  // namespace syncline::update
