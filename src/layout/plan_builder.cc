#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "layout/plan.h"

namespace syncline::layout {
namespace {

using base::Code;
using base::Fail;
using base::Status;

std::string SpecText(const TensorSpec& spec) {
  return fmt::format("{} {} {}", spec.name, Name(spec.dtype), tensor::ShapeText(spec.shape));
}

// The last dimension that is longer than 1; the rank if there is none.
std::size_t InnermostDimension(tensor::Shape shape) {
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1) return d;
  }
  return shape.size();
}

Status CheckSpec(std::string_view kind, const TensorSpec& spec) {
  const base::Result<std::uint64_t> bytes = tensor::ByteCount(spec.dtype, spec.shape);
  if (!bytes) {
    return Fail(Code::kInternal, fmt::format("{} {}: {}", kind, spec.name, bytes.error().message));
  }
  if (*bytes == 0) {
    return Fail(Code::kInternal, fmt::format("{} {} has no elements", kind, SpecText(spec)));
  }
  const std::size_t inner = InnermostDimension(spec.shape);
  if (inner < spec.shape.size() && spec.shape[inner] * tensor::Bits(spec.dtype) % 8 != 0) {
    return Fail(Code::kInternal,
                fmt::format("{} {}: rows do not end on a byte", kind, SpecText(spec)));
  }
  return {};
}

Status CheckBox(std::string_view kind, const TensorSpec& spec, const Box& box) {
  const auto fail = [&](std::string_view what) {
    return Fail(Code::kInternal,
                fmt::format("{} {}: piece {} {}", kind, SpecText(spec), BoxText(box), what));
  };
  if (box.begin.size() != spec.shape.size() || box.end.size() != spec.shape.size()) {
    return fail("has another number of dimensions");
  }
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    if (box.begin[d] >= box.end[d]) return fail("is empty");
    if (box.end[d] > spec.shape[d]) return fail("is out of bounds");
  }
  const std::size_t inner = InnermostDimension(spec.shape);
  const std::uint64_t bits = tensor::Bits(spec.dtype);
  if (inner < spec.shape.size() &&
      (box.begin[inner] * bits % 8 != 0 || box.end[inner] * bits % 8 != 0)) {
    return fail("is not cut at whole bytes");
  }
  return {};
}

// The extents other than 1.
std::vector<std::uint64_t> Extents(const Box& box) {
  std::vector<std::uint64_t> extents;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    if (box.end[d] - box.begin[d] != 1) extents.push_back(box.end[d] - box.begin[d]);
  }
  return extents;
}

Status CheckPiece(const TensorSpec& tensor, const TensorSpec& parameter, const Piece& piece) {
  SYNCLINE_TRY(CheckBox("tensor", tensor, piece.source));
  SYNCLINE_TRY(CheckBox("parameter", parameter, piece.destination));
  if (tensor.dtype != parameter.dtype) {
    return Fail(Code::kInternal, fmt::format("tensor {} and parameter {} differ in dtype",
                                             SpecText(tensor), SpecText(parameter)));
  }
  if (Extents(piece.source) != Extents(piece.destination)) {
    return Fail(
        Code::kInternal,
        fmt::format("tensor {}: piece {} has another shape than {} in parameter {}", tensor.name,
                    BoxText(piece.source), BoxText(piece.destination), parameter.name));
  }
  return {};
}

}  // namespace

std::size_t PlanBuilder::AddParameter(TensorSpec parameter) {
  plan_.parameters_.push_back(std::move(parameter));
  plan_.derived_.push_back(false);
  return plan_.parameters_.size() - 1;
}

std::size_t PlanBuilder::AddDerived(TensorSpec parameter) {
  const std::size_t index = AddParameter(std::move(parameter));
  plan_.derived_[index] = true;
  return index;
}

std::size_t PlanBuilder::AddTensor(TensorSpec tensor) {
  plan_.tensors_.push_back(std::move(tensor));
  absent_.push_back(false);
  return plan_.tensors_.size() - 1;
}

std::size_t PlanBuilder::AddAbsent(TensorSpec tensor) {
  const std::size_t index = AddTensor(std::move(tensor));
  absent_[index] = true;
  return index;
}

void PlanBuilder::AddPiece(Piece piece) { plan_.pieces_.push_back(std::move(piece)); }

void PlanBuilder::AddFill(Fill fill) { plan_.fills_.push_back(std::move(fill)); }

void PlanBuilder::AddWhole(const std::string& tensor, const std::string& parameter,
                           tensor::Dtype dtype, std::vector<std::uint64_t> shape) {
  const Box whole = WholeBox(shape);
  const std::size_t from = AddTensor({.name = tensor, .dtype = dtype, .shape = shape});
  const std::size_t to =
      AddParameter({.name = parameter, .dtype = dtype, .shape = std::move(shape)});
  AddPiece({.tensor = from, .parameter = to, .source = whole, .destination = whole});
}

void PlanBuilder::AddStacked(const std::vector<TensorSpec>& tensors, const std::string& parameter) {
  TensorSpec stack{.name = parameter};
  if (!tensors.empty()) {
    stack.dtype = tensors.front().dtype;
    stack.shape = tensors.front().shape;
  }
  const std::size_t to = plan_.parameters_.size();
  std::uint64_t rows = 0;
  for (const TensorSpec& spec : tensors) {
    const Box source = WholeBox(spec.shape);
    Box destination = source;
    if (!spec.shape.empty()) {
      destination.begin[0] = rows;
      destination.end[0] = rows += spec.shape[0];
    }
    AddPiece({.tensor = AddTensor(spec),
              .parameter = to,
              .source = source,
              .destination = std::move(destination)});
  }
  if (!stack.shape.empty()) stack.shape[0] = rows;
  AddParameter(std::move(stack));
}

void PlanBuilder::Skip(std::string name_or_pattern) {
  plan_.skipped_.push_back(std::move(name_or_pattern));
}

void PlanBuilder::Alias(std::string name, std::string tensor) {
  aliases_.emplace_back(std::move(name), std::move(tensor));
}

base::Result<Plan> PlanBuilder::Build() && {
  SYNCLINE_TRY(IndexSpecs());
  SYNCLINE_TRY(ResolveAliases());
  SYNCLINE_TRY(CheckPieces());
  GroupPieces();
  SYNCLINE_TRY(CheckParameters());
  SYNCLINE_TRY(CheckOwners());
  return std::move(plan_);
}

Status PlanBuilder::IndexSpecs() {
  for (std::size_t i = 0; i < plan_.parameters_.size(); ++i) {
    const TensorSpec& spec = plan_.parameters_[i];
    if (!plan_.parameter_index_.emplace(spec.name, i).second) {
      return Fail(Code::kInternal, fmt::format("parameter {} is there twice", spec.name));
    }
    SYNCLINE_TRY(CheckSpec("parameter", spec));
  }
  for (std::size_t i = 0; i < plan_.tensors_.size(); ++i) {
    const TensorSpec& spec = plan_.tensors_[i];
    if (!plan_.tensor_index_.emplace(spec.name, i).second) {
      return Fail(Code::kInternal, fmt::format("tensor {} is there twice", spec.name));
    }
    if (plan_.IsSkipped(spec.name)) {
      return Fail(Code::kInternal, fmt::format("tensor {} is needed and skipped", spec.name));
    }
    SYNCLINE_TRY(CheckSpec("tensor", spec));
  }
  return {};
}

Status PlanBuilder::ResolveAliases() {
  for (const auto& [name, tensor] : aliases_) {
    const std::size_t target = plan_.FindTensor(tensor);
    if (target == Plan::npos) {
      return Fail(Code::kInternal,
                  fmt::format("alias {} is for tensor {}, which is not there", name, tensor));
    }
    if (plan_.FindTensor(name) != Plan::npos || plan_.IsSkipped(name)) {
      return Fail(Code::kInternal,
                  fmt::format("alias {} of tensor {} is also a tensor or skipped", name, tensor));
    }
    if (!plan_.aliases_.emplace(name, target).second) {
      return Fail(Code::kInternal, fmt::format("alias {} is there twice", name));
    }
  }
  return {};
}

Status PlanBuilder::CheckPieces() const {
  for (const Piece& piece : plan_.pieces_) {
    if (piece.tensor >= plan_.tensors_.size() || piece.parameter >= plan_.parameters_.size()) {
      return Fail(Code::kInternal,
                  fmt::format("a piece names tensor {} of {} and parameter {} of {}", piece.tensor,
                              plan_.tensors_.size(), piece.parameter, plan_.parameters_.size()));
    }
    SYNCLINE_TRY(
        CheckPiece(plan_.tensors_[piece.tensor], plan_.parameters_[piece.parameter], piece));
  }
  for (const Fill& fill : plan_.fills_) {
    if (fill.parameter >= plan_.parameters_.size()) {
      return Fail(Code::kInternal, fmt::format("a fill names parameter {} of {}", fill.parameter,
                                               plan_.parameters_.size()));
    }
    SYNCLINE_TRY(CheckBox("parameter", plan_.parameters_[fill.parameter], fill.box));
  }
  return {};
}

void PlanBuilder::GroupPieces() {
  std::ranges::stable_sort(plan_.pieces_, {}, &Piece::tensor);
  plan_.first_piece_.assign(plan_.tensors_.size() + 1, 0);
  for (const Piece& piece : plan_.pieces_) ++plan_.first_piece_[piece.tensor + 1];
  std::partial_sum(plan_.first_piece_.begin(), plan_.first_piece_.end(),
                   plan_.first_piece_.begin());
}

Status PlanBuilder::CheckParameters() const {
  struct Part {
    const Box* box;
    std::string_view tensor;  // empty: padding
    std::string Text() const {
      return tensor.empty() ? fmt::format("padding {}", BoxText(*box))
                            : fmt::format("{} of tensor {}", BoxText(*box), tensor);
    }
  };
  std::vector<std::vector<Part>> parts_of(plan_.parameters_.size());
  for (const Piece& piece : plan_.pieces_) {
    parts_of[piece.parameter].push_back({&piece.destination, plan_.tensors_[piece.tensor].name});
  }
  for (const Fill& fill : plan_.fills_) parts_of[fill.parameter].push_back({&fill.box, {}});
  std::vector<const Box*> boxes;
  for (std::size_t i = 0; i < plan_.parameters_.size(); ++i) {
    const TensorSpec& spec = plan_.parameters_[i];
    const std::vector<Part>& parts = parts_of[i];
    if (plan_.derived_[i]) {
      if (parts.empty()) continue;
      return Fail(Code::kInternal, fmt::format("parameter {} is derived and has {}", SpecText(spec),
                                               parts.front().Text()));
    }
    boxes.clear();
    std::uint64_t covered = 0;
    for (const Part& part : parts) {
      boxes.push_back(part.box);
      covered += part.box->elements();
    }
    if (const auto overlap = FindOverlap(boxes)) {
      return Fail(Code::kInternal,
                  fmt::format("parameter {}: {} and {} overlap", SpecText(spec),
                              parts[overlap->first].Text(), parts[overlap->second].Text()));
    }
    const std::uint64_t total = WholeBox(spec.shape).elements();
    if (covered != total) {
      const auto gap = FirstGap(spec.shape, boxes);
      return Fail(
          Code::kInternal,
          fmt::format("parameter {}: {} of {} elements are in no piece, the first at {}",
                      SpecText(spec), total - covered, total, gap ? tensor::ShapeText(*gap) : "?"));
    }
  }
  return {};
}

Status PlanBuilder::CheckOwners() const {
  std::vector<const Box*> boxes;
  for (std::size_t i = 0; i < plan_.tensors_.size(); ++i) {
    const std::span<const Piece> pieces = plan_.PiecesOf(i);
    if (pieces.empty() != absent_[i]) {
      return Fail(Code::kInternal,
                  fmt::format("tensor {} has {}", SpecText(plan_.tensors_[i]),
                              pieces.empty() ? "no piece" : "a piece and is declared absent"));
    }
    boxes.clear();
    for (const Piece& piece : pieces) {
      if (piece.owner) boxes.push_back(&piece.source);
    }
    if (const auto overlap = FindOverlap(boxes)) {
      return Fail(
          Code::kInternal,
          fmt::format("tensor {}: the owning pieces {} and {} overlap", SpecText(plan_.tensors_[i]),
                      BoxText(*boxes[overlap->first]), BoxText(*boxes[overlap->second])));
    }
  }
  return {};
}

}  // namespace syncline::layout
