// What the weight checker looks at: the entries of a runner, and the pieces in which they are
// worked on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "layout/plan.h"
#include "quant/units.h"

namespace syncline::checker {

// How a parameter lies in its slot in the runtime layout. What the slot has beyond `bytes` is of no
// matter there.
struct Stored {
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;  // with padding
};

// By number in the plan.
std::vector<Stored> StoredParameters(const layout::Plan& plan, const quant::Units& units);

// A parameter of which the bytes count, or the weight of a block-wise fp8 unit, of which the values
// do.
struct Entry {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kBF16;  // of the parameter, or of the weight of `unit`
  std::vector<std::uint64_t> shape;            // in the runtime layout
  std::uint64_t bytes = 0;  // that are hashed: all of the parameter's, or of values in bf16
  bool derived = false;
  std::vector<std::size_t> parameters;  // in the plan: one, or the unit's weight and scale
  const quant::Unit* unit = nullptr;    // of block-wise fp8; null: the bytes count

  std::size_t weight() const { return parameters[0]; }
  std::size_t scale() const { return parameters[1]; }  // only of a unit
};

// In the order of the plan's parameters. Every parameter is in one entry. Points into `units`.
std::vector<Entry> MakeEntries(const layout::Plan& plan, const quant::Units& units);

// Does a name contain one of the parts that are never checked, or one of `skip`?
bool IsSkipped(std::string_view name, std::span<const std::string> skip);

// "F8_E4M3 [128, 256]"
std::string KindText(const Entry& entry);

// Rows [first, last) of one matrix of a unit.
struct RowRange {
  std::uint64_t expert = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

// A piece of an entry: bytes [begin, end) of what is hashed of it. They begin at a multiple of 4,
// so that DeviceHash takes them, and hold whole values.
struct Piece {
  std::size_t entry = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<RowRange> rows;  // of a unit: those that these bytes are
};

// A multiple of the tiles of DeviceHash and of elements of 6 bits.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{3} << 20;

// Pieces of an entry in order, of about `bytes` each (a multiple of 12), but of a unit at least as
// many rows as its scheme dequantises at a time. An empty entry has none.
std::vector<Piece> PiecesOf(const Entry& entry, std::size_t number,
                            std::uint64_t bytes = kPieceBytes);

}  // namespace syncline::checker
