#include "update/unit_model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "quant/fp8_block.h"
#include "quant/wna16_marlin.h"

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

// Rows of the parts of fp8 units; the last block of each is short.
constexpr std::uint64_t kRowsQ = 130;
constexpr std::uint64_t kRowsK = 70;
constexpr std::uint64_t kColumns = 200;
// Of units of 4-bit integers.
constexpr std::uint64_t kRowsM = 40;
constexpr std::uint64_t kRowsN = 24;
constexpr std::uint64_t kColumnsM = 96;
constexpr std::uint64_t kGroup = 32;

// A unit in which checkpoint tensors are stacked.
class UnitPlanner {
 public:
  UnitPlanner(PlanBuilder& builder, const std::string& module, quant::Matrix matrix,
              std::shared_ptr<const quant::Scheme> scheme)
      : builder_(builder) {
    unit_.module = module;
    unit_.scheme = std::move(scheme);
    unit_.matrix = std::move(matrix);
    for (const quant::Slot& slot : unit_.scheme->Slots(unit_.matrix)) {
      unit_.parameters.push_back(
          builder.AddParameter({module + "." + slot.name, slot.load.dtype, slot.load.shape}));
    }
    offsets_.assign(unit_.parameters.size(), 0);
  }

  // The next part of the matrix, or of that expert's.
  void Add(const std::string& name, std::uint64_t rows) { AddPart(name, rows, std::nullopt); }
  void AddTo(std::uint64_t expert, const std::string& name, std::uint64_t rows) {
    AddPart(name, rows, expert);
  }
  void NextExpert() { offsets_.assign(offsets_.size(), 0); }

  quant::Unit Take() && { return std::move(unit_); }

 private:
  void AddPart(const std::string& name, std::uint64_t rows, std::optional<std::uint64_t> expert) {
    quant::Matrix part = unit_.matrix;
    part.experts = 0;
    part.part_rows = {rows};
    const std::vector<quant::Slot> slots = unit_.scheme->Slots(part);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const layout::Box source = WholeBox(slots[i].load.shape);
      layout::Box box = source;
      box.begin[0] += offsets_[i];
      box.end[0] += offsets_[i];
      offsets_[i] = box.end[0];
      if (expert) {
        box.begin.insert(box.begin.begin(), *expert);
        box.end.insert(box.end.begin(), *expert + 1);
      }
      const TensorSpec spec = {name + "." + slots[i].name, slots[i].load.dtype,
                               slots[i].load.shape};
      builder_.AddPiece({.tensor = builder_.AddTensor(spec),
                         .parameter = unit_.parameters[i],
                         .source = source,
                         .destination = box});
    }
  }

  PlanBuilder& builder_;
  quant::Unit unit_;
  std::vector<std::uint64_t> offsets_;  // rows of each parameter that are taken
};

quant::Matrix MatrixOf(std::vector<std::uint64_t> part_rows, std::uint64_t columns,
                       std::uint64_t experts = 0) {
  quant::Matrix matrix;
  matrix.experts = experts;
  matrix.part_rows = std::move(part_rows);
  matrix.columns = columns;
  return matrix;
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
  const auto packed = quant::Fp8BlockUe8m0();
  UnitPlanner qk(builder, prefix + "qk", MatrixOf({kRowsQ, kRowsK}, kColumns), packed);
  qk.Add(prefix + "q", kRowsQ);
  qk.Add(prefix + "k", kRowsK);
  units.push_back(std::move(qk).Take());
  UnitPlanner gu(builder, prefix + "gu", MatrixOf({kRowsK, kRowsQ}, kColumns, 3), packed);
  for (std::uint64_t i = 0; i < 3; ++i, gu.NextExpert()) {
    gu.AddTo(i, prefix + "g." + std::to_string(i), kRowsK);
    gu.AddTo(i, prefix + "u." + std::to_string(i), kRowsQ);
  }
  units.push_back(std::move(gu).Take());
  UnitPlanner w(builder, prefix + "w", MatrixOf({kRowsQ}, kColumns), quant::Fp8Block());
  w.Add(prefix + "w", kRowsQ);
  units.push_back(std::move(w).Take());
  const auto marlin = quant::Wna16Marlin(kGroup);
  UnitPlanner mn(builder, prefix + "mn", MatrixOf({kRowsM, kRowsN}, kColumnsM), marlin);
  mn.Add(prefix + "m", kRowsM);
  mn.Add(prefix + "n", kRowsN);
  units.push_back(std::move(mn).Take());
  UnitPlanner x(builder, prefix + "x", MatrixOf({kRowsM, kRowsN}, kColumnsM, 2), marlin);
  for (std::uint64_t i = 0; i < 2; ++i, x.NextExpert()) {
    x.AddTo(i, prefix + "x." + std::to_string(i) + ".m", kRowsM);
    x.AddTo(i, prefix + "x." + std::to_string(i) + ".n", kRowsN);
  }
  units.push_back(std::move(x).Take());
  absorbed_ = builder.AddDerived({prefix + "absorbed", Dtype::kBF16, {kRowsQ + kRowsK, kColumns}});
  plan_ = OrDie(std::move(builder).Build());
  units_ = OrDie(quant::Units::Create(plan_, std::move(units)));
  parameters_.emplace(OrDie(model::Parameters::Create(plan_, units_)));
}

base::Status UnitModel::Derive(std::span<const base::MutableByteSpan> memory) {
  const quant::Unit& unit = units_.units()[0];
  std::vector<base::ByteSpan> slots;
  slots.reserve(unit.parameters.size());
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
    if (!spec.name.contains(".weight_scale")) continue;
    // Positive scales as trainers make them.
    for (std::size_t i = 0; i < bytes.size(); i += tensor::Bits(spec.dtype) / 8) {
      const float scale = std::uniform_real_distribution<float>(1e-4F, 1e-2F)(random);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &scale, sizeof(bits));
      if (spec.dtype == Dtype::kBF16) bits >>= 16;
      std::memcpy(bytes.data() + i, &bits, tensor::Bits(spec.dtype) / 8);
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
  parts.reserve(copies.size());
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
