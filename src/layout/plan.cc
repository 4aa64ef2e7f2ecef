#include "layout/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <optional>

#include "layout/known_names.h"
#include "layout/pieces.h"
#include "layout/runs.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::Fail;

template <typename Index>
std::size_t Find(const Index& index, std::string_view name) {
  const auto found = index.find(name);
  return found == index.end() ? Plan::npos : found->second;
}

// The parts of the parameter in the order in which they lie in it, each name once.
std::vector<std::string_view> TensorsIn(const Plan& plan, std::size_t parameter) {
  std::vector<const Piece*> pieces;
  for (const Piece& piece : plan.pieces()) {
    if (piece.parameter == parameter) pieces.push_back(&piece);
  }
  std::ranges::stable_sort(pieces, {}, [](const Piece* piece) { return piece->destination.begin; });
  std::vector<std::string_view> names;
  std::vector<bool> listed(plan.tensors().size());
  for (const Piece* piece : pieces) {
    if (listed[piece->tensor]) continue;
    listed[piece->tensor] = true;
    names.emplace_back(plan.tensors()[piece->tensor].name);
  }
  return names;
}

}  // namespace

std::uint64_t TensorSpec::bytes() const { return tensor::ByteCount(dtype, shape).value_or(0); }

std::size_t Plan::FindTensor(std::string_view name) const { return Find(tensor_index_, name); }

std::size_t Plan::FindParameter(std::string_view name) const {
  return Find(parameter_index_, name);
}

std::size_t Plan::FindAlias(std::string_view name) const { return Find(aliases_, name); }

std::span<const Piece> Plan::PiecesOf(std::size_t tensor) const {
  return std::span(pieces_).subspan(first_piece_[tensor],
                                    first_piece_[tensor + 1] - first_piece_[tensor]);
}

bool Plan::HoldsWhole(std::size_t tensor) const {
  std::uint64_t owned = 0;  // no element twice: owning pieces do not overlap
  for (const Piece& piece : PiecesOf(tensor)) {
    if (piece.owner) owned += piece.source.elements();
  }
  return owned == WholeBox(tensors_[tensor].shape).elements();
}

bool Plan::IsSkipped(std::string_view name) const {
  return std::ranges::any_of(skipped_, [name](std::string_view pattern) {
    if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
    if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
    return name == pattern;
  });
}

base::Result<std::size_t> Plan::Match(std::string_view name, tensor::Dtype dtype,
                                      tensor::Shape shape) const {
  std::size_t index = FindTensor(name);
  if (index == npos) index = FindAlias(name);
  if (index == npos) return Unknown(name);
  const TensorSpec& expected = tensors_[index];
  if (dtype != expected.dtype) {
    return Fail(Code::kInvalidArgument, fmt::format("tensor {} has dtype {}, expected {}", name,
                                                    Name(dtype), Name(expected.dtype)));
  }
  if (!std::ranges::equal(shape, expected.shape)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("tensor {} has shape {}, expected {}", name, tensor::ShapeText(shape),
                            tensor::ShapeText(expected.shape)));
  }
  return index;
}

base::Result<std::size_t> Plan::Unknown(std::string_view name) const {
  const std::string clipped = ClippedName(name);
  if (const std::size_t parameter = FindParameter(name); parameter != npos) {
    return Fail(Code::kNotFound, fmt::format("{} is a fused parameter of this engine; send {}",
                                             clipped, ListText(TensorsIn(*this, parameter))));
  }
  if (IsSkipped(name)) {
    return Fail(Code::kNotFound, fmt::format("no parameter needs tensor {}", clipped));
  }
  std::vector<std::string_view> known;
  known.reserve(tensors_.size() + aliases_.size());
  for (const TensorSpec& spec : tensors_) known.emplace_back(spec.name);
  for (const auto& [alias, tensor] : aliases_) known.emplace_back(alias);
  const std::optional<std::string_view> nearest = NearestName(name, known);
  return Fail(Code::kNotFound,
              fmt::format("the model has no tensor {}{}", clipped,
                          nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

void Plan::Scatter(std::size_t tensor, base::ByteSpan bytes,
                   std::span<const base::MutableByteSpan> parameters) const {
  assert(bytes.size() == tensors_[tensor].bytes() && parameters.size() == parameters_.size());
  for (const Piece& piece : PiecesOf(tensor)) {
    const TensorSpec& parameter = parameters_[piece.parameter];
    assert(parameters[piece.parameter].size() >= parameter.bytes());
    const Runs runs = FindRuns(parameter.dtype, {tensors_[tensor].shape, piece.source},
                               {parameter.shape, piece.destination});
    StreamRuns(runs, bytes.data(), parameters[piece.parameter].data());
  }
}

void Plan::Gather(std::size_t tensor, std::span<const base::ByteSpan> parameters,
                  base::MutableByteSpan into) const {
  assert(into.size() == tensors_[tensor].bytes() && parameters.size() == parameters_.size());
  assert(HoldsWhole(tensor));
  for (const Piece& piece : PiecesOf(tensor)) {
    if (!piece.owner) continue;
    const TensorSpec& parameter = parameters_[piece.parameter];
    assert(parameters[piece.parameter].size() >= parameter.bytes());
    const Runs runs = FindRuns(parameter.dtype, {parameter.shape, piece.destination},
                               {tensors_[tensor].shape, piece.source});
    CopyRuns(runs, parameters[piece.parameter].data(), into.data());
  }
}

std::uint64_t Plan::OwnedBytes(std::size_t tensor) const {
  std::uint64_t owned = 0;
  for (const Piece& piece : PiecesOf(tensor)) {
    if (piece.owner) owned += PieceBytes(tensors_[tensor].dtype, piece.source);
  }
  return owned;
}

void Plan::ClearFills(std::span<const base::MutableByteSpan> parameters) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) ClearFillsOf(i, parameters[i]);
}

void Plan::ClearFillsOf(std::size_t parameter, base::MutableByteSpan memory) const {
  const TensorSpec& spec = parameters_[parameter];
  for (const Fill& fill : fills_) {
    if (fill.parameter != parameter) continue;
    const Place place = {spec.shape, fill.box};
    FillRuns(FindRuns(spec.dtype, place, place), memory.data());
  }
}

}  // namespace syncline::layout
