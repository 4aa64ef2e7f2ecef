#include "checker/entries.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

namespace syncline::checker {
namespace {

using quant::Slot;
using quant::Unit;

constexpr std::array<std::string_view, 4> kNeverChecked = {"cos_sin_cache", "inv_freq", "freqs_cis",
                                                           "_weight_fp32"};

// The places of weight and scale among the slots.
struct Fp8Slots {
  std::size_t weight = 0;
  std::size_t scale = 0;
};

std::optional<Fp8Slots> FindFp8Slots(const Unit& unit, std::span<const Slot> slots) {
  if (!unit.scheme->name().starts_with("fp8-block") || slots.size() != 2) return std::nullopt;
  const auto weight = std::ranges::find(slots, "weight", &Slot::name);
  if (weight == slots.end()) return std::nullopt;
  const auto at = static_cast<std::size_t>(weight - slots.begin());
  return Fp8Slots{.weight = at, .scale = 1 - at};
}

std::vector<Piece> PiecesOfBytes(const Entry& entry, std::size_t number, std::uint64_t bytes) {
  std::vector<Piece> pieces;
  for (std::uint64_t begin = 0; begin < entry.bytes; begin += bytes) {
    pieces.push_back(
        {.entry = number, .begin = begin, .end = begin + std::min(bytes, entry.bytes - begin)});
  }
  return pieces;
}

}  // namespace

std::vector<Stored> StoredParameters(const layout::Plan& plan, const quant::Units& units) {
  std::vector<Stored> stored;
  for (const layout::TensorSpec& spec : plan.parameters()) {
    stored.push_back({.dtype = spec.dtype, .shape = spec.shape, .bytes = spec.bytes()});
  }
  for (const Unit& unit : units.units()) {
    const std::vector<Slot> slots = unit.scheme->Slots(unit.matrix);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      stored[unit.parameters[i]] = {.dtype = slots[i].runtime.dtype,
                                    .shape = slots[i].runtime.shape,
                                    .bytes = slots[i].runtime_bytes};
    }
  }
  return stored;
}

std::vector<Entry> MakeEntries(const layout::Plan& plan, const quant::Units& units) {
  const std::vector<Stored> stored = StoredParameters(plan, units);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    Entry entry = {.name = plan.parameters()[i].name,
                   .dtype = stored[i].dtype,
                   .shape = stored[i].shape,
                   .bytes = stored[i].bytes,
                   .derived = plan.IsDerived(i),
                   .parameters = {i}};
    if (const std::size_t number = units.UnitOf(i); number != quant::Units::npos) {
      const Unit& unit = units.units()[number];
      const auto fp8 = FindFp8Slots(unit, unit.scheme->Slots(unit.matrix));
      if (fp8 && unit.parameters[fp8->scale] == i) continue;
      if (fp8) {
        entry.bytes = 2 * unit.matrix.count() * unit.matrix.rows() * unit.matrix.columns;
        entry.parameters.push_back(unit.parameters[fp8->scale]);
        entry.unit = &unit;
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool IsSkipped(std::string_view name, std::span<const std::string> skip) {
  const auto in_name = [&](std::string_view part) { return name.contains(part); };
  return std::ranges::any_of(kNeverChecked, in_name) || std::ranges::any_of(skip, in_name);
}

std::string KindText(const Entry& entry) {
  return fmt::format("{} {}", tensor::Name(entry.dtype), tensor::ShapeText(entry.shape));
}

std::vector<Piece> PiecesOf(const Entry& entry, std::size_t number, std::uint64_t bytes) {
  if (entry.unit == nullptr) return PiecesOfBytes(entry, number, bytes);
  const quant::Matrix& matrix = entry.unit->matrix;
  const std::uint64_t row_bytes = 2 * matrix.columns;
  if (row_bytes == 0) return {};
  const std::uint64_t row_step = std::max<std::uint64_t>(1, entry.unit->scheme->RowStep());
  const std::uint64_t step = std::max<std::uint64_t>(1, bytes / row_bytes / row_step) * row_step;
  std::vector<Piece> pieces;
  Piece piece{.entry = number};
  for (std::uint64_t expert = 0; expert < matrix.count(); ++expert) {
    for (std::uint64_t first = 0; first < matrix.rows(); first += step) {
      const std::uint64_t last = std::min(first + step, matrix.rows());
      piece.rows.push_back({.expert = expert, .first = first, .last = last});
      piece.end += (last - first) * row_bytes;
      // Small matrices share a piece; one that ended inside a word goes on.
      if (piece.end - piece.begin < bytes / 2 || piece.end % 4 != 0) continue;
      const std::uint64_t end = piece.end;
      pieces.push_back(std::move(piece));
      piece = {.entry = number, .begin = end, .end = end};
    }
  }
  if (piece.end > piece.begin) pieces.push_back(std::move(piece));
  return pieces;
}

}  // namespace syncline::checker
