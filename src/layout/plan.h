// Where every element of every checkpoint tensor lives inside the parameters of one runner on one
// rank. Pure data.
//
// An engine fuses checkpoint tensors (q, k and v into one matrix) and, with several ranks, slices
// them. Here that is a list of pieces instead of loader code, so that loading, export, coverage,
// deltas and digests are all the same loop.
//
// A plan knows every tensor of the checkpoint, also those of which its rank holds nothing, so that
// all ranks say the same of a name. Among the ranks of an engine each element of a tensor has
// exactly one owning piece.
//
// Invariants, checked by PlanBuilder::Build:
//   names     parameters have different names, and so have tensors, aliases and skipped names;
//   pieces    lie inside their tensor and parameter, which have the same dtype, and are not empty;
//             their two boxes have the same extents up to those of 1;
//   parameter each element is covered by exactly one piece or fill; a derived one has neither;
//   tensor    has at least one piece, unless it is declared absent, and each element is covered by
//             at most one owning piece;
//   bytes     elements of 4 and 6 bits are cut only at whole bytes of the innermost dimension (the
//             last that is longer than 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "layout/box.h"
#include "tensor/dtype.h"

namespace syncline::layout {

struct TensorSpec {
  std::string name;
  tensor::Dtype dtype = tensor::Dtype::kBF16;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes() const;  // of a tensor in a Plan, whose size is known to fit
};

struct Piece {
  std::size_t tensor = 0;     // index into Plan::tensors()
  std::size_t parameter = 0;  // index into Plan::parameters()
  Box source;                 // in the checkpoint tensor
  Box destination;            // in the parameter
  bool owner = true;          // exports and digests take the element from here
};

// Padding: a part of a parameter that belongs to no tensor, and is zero.
struct Fill {
  std::size_t parameter = 0;
  Box box;
};

// Immutable, thread-safe.
class Plan {
 public:
  const std::vector<TensorSpec>& parameters() const { return parameters_; }
  // Of the checkpoint, as the plan expects them.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Grouped by tensor, in the order of tensors().
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<Fill>& fills() const { return fills_; }
  // A parameter that is computed from others after they are loaded.
  bool IsDerived(std::size_t parameter) const { return derived_[parameter]; }

  // Index into tensors(); npos if the plan has none of that name. Aliases are not found.
  static constexpr std::size_t npos = ~std::size_t{0};  // NOLINT(readability-identifier-naming)
  std::size_t FindTensor(std::string_view name) const;
  std::size_t FindParameter(std::string_view name) const;
  // The pieces of one tensor: a range of pieces().
  std::span<const Piece> PiecesOf(std::size_t tensor) const;
  // Whether the owning pieces cover the tensor. Not so for one that is divided between ranks, or
  // that another rank owns.
  bool HoldsWhole(std::size_t tensor) const;
  std::uint64_t OwnedBytes(std::size_t tensor) const;

  // A name that a checkpoint may hold and that no parameter needs (rotary buffers).
  bool IsSkipped(std::string_view name) const;
  // A name that a checkpoint may hold beside another one that has the same bytes (the head of a
  // tied model): the index of that other tensor; npos if it is no such name. A checkpoint that
  // holds both with different bytes is wrong.
  std::size_t FindAlias(std::string_view name) const;

  // Does a tensor of this name (or alias), dtype and shape belong here? Its index, for an alias
  // that of its target. kInvalidArgument with expected and actual if dtype or shape differ;
  // kNotFound for a name that no tensor or alias has (skipped ones too), with the nearest known
  // name, or the tensors to send where it is the name of a fused parameter.
  base::Result<std::size_t> Match(std::string_view name, tensor::Dtype dtype,
                                  tensor::Shape shape) const;

  // Copies a whole checkpoint tensor into the parameters. `parameters[i]` is the memory of
  // parameter i, row-major. Those spans have at least the bytes of their TensorSpec, what is
  // sent and exported exactly those of the tensor.
  void Scatter(std::size_t tensor, base::ByteSpan bytes,
               std::span<const base::MutableByteSpan> parameters) const;
  // The inverse: a whole checkpoint tensor out of the parameters, by its owning pieces. For tensors
  // of which HoldsWhole is true.
  void Gather(std::size_t tensor, std::span<const base::ByteSpan> parameters,
              base::MutableByteSpan into) const;

  // Makes the padding zero. What Scatter writes never touches it.
  void ClearFills(std::span<const base::MutableByteSpan> parameters) const;
  // Of one parameter.
  void ClearFillsOf(std::size_t parameter, base::MutableByteSpan memory) const;

 private:
  friend class PlanBuilder;
  // Lets a map be asked by string_view.
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  using Index = std::unordered_map<std::string, std::size_t, NameHash, std::equal_to<>>;

  base::Result<std::size_t> Unknown(std::string_view name) const;

  std::vector<TensorSpec> parameters_;
  std::vector<TensorSpec> tensors_;
  std::vector<Piece> pieces_;
  std::vector<Fill> fills_;
  std::vector<bool> derived_;             // by parameter
  std::vector<std::size_t> first_piece_;  // of tensor i; one more entry at the end
  std::vector<std::string> skipped_;      // exact names, "*suffix" or "prefix*"
  Index aliases_;                         // to tensors_
  Index tensor_index_;
  Index parameter_index_;
};

// Not thread-safe.
class PlanBuilder {
 public:
  // Parameters and tensors are numbered in the order in which they are added.
  std::size_t AddParameter(TensorSpec parameter);
  std::size_t AddTensor(TensorSpec tensor);
  void AddPiece(Piece piece);
  void AddFill(Fill fill);
  // A tensor of which this rank holds nothing.
  std::size_t AddAbsent(TensorSpec tensor);
  // A parameter that is computed from others.
  std::size_t AddDerived(TensorSpec parameter);
  // Adds one tensor, one parameter, and that they are the same.
  void AddWhole(const std::string& tensor, const std::string& parameter, tensor::Dtype dtype,
                std::vector<std::uint64_t> shape);
  // Adds tensors of one dtype and of equal shape but for dimension 0, and the parameter in which
  // they are stacked along it in this order (q, k, v; gate, up).
  void AddStacked(const std::vector<TensorSpec>& tensors, const std::string& parameter);
  // An exact name, or the end of a name after '*', or the beginning of one before '*'.
  void Skip(std::string name_or_pattern);
  void Alias(std::string name, std::string tensor);

  // kInternal, naming tensor or parameter, where an invariant does not hold: a plan is code of
  // ours.
  base::Result<Plan> Build() &&;

 private:
  base::Status IndexSpecs();
  base::Status ResolveAliases();
  base::Status CheckPieces() const;
  void GroupPieces();
  base::Status CheckParameters() const;
  base::Status CheckOwners() const;

  Plan plan_;
  std::vector<std::pair<std::string, std::string>> aliases_;  // name, tensor
  std::vector<bool> absent_;                                  // by tensor
};

}  // namespace syncline::layout
