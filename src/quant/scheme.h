// A scheme: how quantised weights lie in memory, as they are loaded and as the forward pass reads
// them.
//
// The parameters of one matrix (its weight and its scales) are a unit: they have a load layout,
// that of the plan (layout/plan.h), which checkpoint tensors are written into, and a runtime
// layout, which the kernels read. Both lie in the same slots, so no address ever moves and there is
// no second copy.
//
//              Process
//   load  ────────────────▶  runtime
//         ◀────────────────
//              Restore
//
// Restore is the inverse of Process: after it the slots hold load-layout bytes from which Process
// makes the same runtime bytes again, bit for bit. So what is changed between the two changes only
// itself. Which layout a unit is in is the caller's to know: each step is done once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/plan.h"
#include "tensor/dtype.h"

namespace syncline::quant {

// The matrix of a unit on this rank: y = x · weightᵀ, with `rows` outputs and `columns` inputs.
struct Matrix {
  std::uint64_t experts = 0;             // 0: one matrix, two dimensions; else a leading dimension
  std::vector<std::uint64_t> part_rows;  // of the checkpoint tensors that are stacked in it
  std::uint64_t columns = 0;
  tensor::Dtype activation = tensor::Dtype::kBF16;  // of the scales where a scheme leaves it open

  std::uint64_t rows() const;                                         // sum of part_rows
  std::uint64_t count() const { return experts == 0 ? 1 : experts; }  // of matrices
};

// A parameter of a unit. `name` is the end of the parameter's name after the module's
// ("weight", "weight_scale_inv", "weight_packed", …), the same in the checkpoint.
struct Slot {
  std::string name;
  layout::TensorSpec load;     // name empty; the leading dimension `experts` where there are some
  layout::TensorSpec runtime;  // logical shape; what lies where is the scheme's to say
  std::uint64_t runtime_bytes = 0;  // with padding; may exceed those of the load layout
  // Of the load layout: an element stands for a block of so many rows and columns of the matrix (0:
  // for all of a part's). Parts begin a block of their own, so the last block of each may be short;
  // ranks never share a block. Its shape is [blocks of rows, blocks of columns], or the other way
  // round where columns come first (GPTQ, AWQ): then parts are stacked along the last dimension.
  std::uint64_t block_rows = 1;
  std::uint64_t block_columns = 1;
  bool columns_first = false;
};

// Memory of the slots of one unit, in the order of Slots(): each has the larger of the bytes of
// both layouts, and is aligned to 16 bytes. What stands behind the bytes of a layout has no
// meaning.
using SlotViews = std::span<const base::ByteSpan>;
using MutableSlotViews = std::span<const base::MutableByteSpan>;

enum class Layout : std::uint8_t { kLoad, kRuntime };

// Immutable, thread-safe. No method fails: what can be wrong with a matrix Check says, and any
// bytes are fine (a value that makes no sense stays one).
class Scheme {
 public:
  virtual ~Scheme() = default;
  virtual std::string_view name() const = 0;  // "fp8-block", "fp8-block-ue8m0", "wna16-marlin", …

  // kInvalidArgument: the scheme cannot hold such a matrix; names expected and actual.
  virtual base::Status Check(const Matrix& matrix) const = 0;
  virtual std::vector<Slot> Slots(const Matrix& matrix) const = 0;

  // Do the bytes of both layouts differ? If not, Process and Restore do nothing.
  virtual bool Repacks() const = 0;
  // Is Process exact for every value? If not (it rounds), an export gives the rounded values.
  virtual bool Exact() const = 0;

  // Both take the memory that they need before they change anything.
  virtual void Process(const Matrix& matrix, MutableSlotViews slots,
                       base::ThreadPool& pool) const = 0;
  virtual void Restore(const Matrix& matrix, MutableSlotViews slots,
                       base::ThreadPool& pool) const = 0;

  // Rows [first, last) of one matrix as values, row-major, [last - first, columns]: quantised value
  // times scale as fp32, rounded to bf16 (nearest, ties to even). Reads either layout. `first` and
  // `last` are multiples of RowStep(), or `last` is the number of rows.
  virtual std::uint64_t RowStep() const = 0;
  virtual void Dequantise(const Matrix& matrix, SlotViews slots, Layout layout,
                          std::uint64_t expert, std::uint64_t first, std::uint64_t last,
                          std::uint16_t* bf16) const = 0;
};

}  // namespace syncline::quant
