#include "quant/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace syncline::quant {

using base::Code;
using base::Fail;

std::uint64_t Matrix::rows() const {
  return std::accumulate(part_rows.begin(), part_rows.end(), std::uint64_t{0});
}

namespace {

base::Status CheckSlots(const layout::Plan& plan, const Unit& unit,
                        const std::vector<Slot>& slots) {
  if (slots.size() != unit.parameters.size()) {
    return Fail(Code::kInternal,
                fmt::format("{}: {} has {} parameters, the plan {}", unit.module,
                            unit.scheme->name(), slots.size(), unit.parameters.size()));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const layout::TensorSpec& planned = plan.parameters()[unit.parameters[i]];
    const layout::TensorSpec& load = slots[i].load;
    if (planned.dtype == load.dtype && planned.shape == load.shape) continue;
    return Fail(
        Code::kInternal,
        fmt::format("{}: {} loads {} {}, the plan has {} {}", planned.name, unit.scheme->name(),
                    tensor::Name(load.dtype), tensor::ShapeText(load.shape),
                    tensor::Name(planned.dtype), tensor::ShapeText(planned.shape)));
  }
  return {};
}

}  // namespace

base::Result<Units> Units::Create(const layout::Plan& plan, std::vector<Unit> units) {
  Units made;
  made.unit_of_.assign(plan.parameters().size(), npos);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    if (base::Status fits = unit.scheme->Check(unit.matrix); !fits) {
      return base::Annotate(fits.error(), unit.module);
    }
    SYNCLINE_TRY(CheckSlots(plan, unit, unit.scheme->Slots(unit.matrix)));
    for (const std::size_t parameter : unit.parameters) {
      if (made.unit_of_[parameter] != npos) {
        return Fail(Code::kInternal,
                    fmt::format("{} is in the units {} and {}", plan.parameters()[parameter].name,
                                units[made.unit_of_[parameter]].module, unit.module));
      }
      made.unit_of_[parameter] = i;
    }
  }
  made.units_ = std::move(units);
  return made;
}

std::vector<std::uint64_t> Units::SlotBytes(const layout::Plan& plan, const Units& units) {
  std::vector<std::uint64_t> bytes;
  for (const layout::TensorSpec& parameter : plan.parameters()) bytes.push_back(parameter.bytes());
  for (const Unit& unit : units.units_) {
    const std::vector<Slot> slots = unit.scheme->Slots(unit.matrix);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::uint64_t& own = bytes[unit.parameters[i]];
      own = std::max(own, slots[i].runtime_bytes);
    }
  }
  return bytes;
}

std::vector<base::MutableByteSpan> Units::SlotsOf(
    std::size_t unit, std::span<const base::MutableByteSpan> parameters) const {
  std::vector<base::MutableByteSpan> slots;
  for (const std::size_t parameter : units_[unit].parameters) {
    slots.push_back(parameters[parameter]);
  }
  return slots;
}

std::vector<std::vector<std::byte>> Units::Restored(
    std::size_t unit, std::span<const base::MutableByteSpan> parameters,
    base::ThreadPool& pool) const {
  std::vector<std::vector<std::byte>> copies;
  for (const base::MutableByteSpan slot : SlotsOf(unit, parameters)) {
    copies.emplace_back(slot.begin(), slot.end());
  }
  const std::vector<base::MutableByteSpan> slots(copies.begin(), copies.end());
  const Unit& own = units_[unit];
  if (own.scheme->Repacks()) own.scheme->Restore(own.matrix, slots, pool);
  return copies;
}

void Units::ProcessAll(std::span<const base::MutableByteSpan> parameters,
                       base::ThreadPool& pool) const {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (unit.scheme->Repacks()) unit.scheme->Process(unit.matrix, SlotsOf(i, parameters), pool);
  }
}

void Units::RestoreAll(std::span<const base::MutableByteSpan> parameters,
                       base::ThreadPool& pool) const {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (unit.scheme->Repacks()) unit.scheme->Restore(unit.matrix, SlotsOf(i, parameters), pool);
  }
}

}  // namespace syncline::quant
