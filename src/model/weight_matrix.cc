#include "model/weight_matrix.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "model/parallel.h"

namespace syncline::model {

WeightMatrix::WeightMatrix(const quant::Unit& unit, std::vector<base::ByteSpan> slots,
                           at::ScalarType activation)
    : packed_(std::make_shared<const Packed>(&unit, std::move(slots), activation)) {}

std::int64_t WeightMatrix::outputs() const {
  if (!quantised()) return values_.size(-2);
  return static_cast<std::int64_t>(packed_->unit->matrix.rows());
}

std::int64_t WeightMatrix::inputs() const {
  if (!quantised()) return values_.size(-1);
  return static_cast<std::int64_t>(packed_->unit->matrix.columns);
}

std::int64_t WeightMatrix::matrices() const {
  if (!quantised()) return values_.dim() == 3 ? values_.size(0) : 1;
  return static_cast<std::int64_t>(packed_->unit->matrix.count());
}

at::TensorOptions WeightMatrix::options() const {
  if (!quantised()) return values_.options();
  return at::TensorOptions().dtype(packed_->activation);
}

WeightMatrix WeightMatrix::Select(std::int64_t matrix) const {
  if (!quantised()) return WeightMatrix(values_.select(0, matrix));
  WeightMatrix selected = *this;
  selected.matrix_ = static_cast<std::uint64_t>(matrix);
  return selected;
}

at::Tensor WeightMatrix::Values(std::int64_t first, std::int64_t last) const {
  if (!quantised()) return values_.narrow(0, first, last - first);
  at::Tensor values = at::empty({last - first, inputs()}, at::kBFloat16);
  auto* const out = static_cast<Bf16*>(values.mutable_data_ptr());
  const std::int64_t step = RowStep();
  ParallelFor((last - first + step - 1) / step, step * inputs() / 4,
              [&](std::int64_t begin, std::int64_t end) {
                const std::int64_t from = first + begin * step;
                Dequantise(from, std::min(last, first + end * step),
                           out + (from - first) * inputs());
              });
  return values.to(packed_->activation);
}

std::int64_t WeightMatrix::RowStep() const {
  return static_cast<std::int64_t>(packed_->unit->scheme->RowStep());
}

void WeightMatrix::Dequantise(std::int64_t first, std::int64_t last, Bf16* out) const {
  const quant::Unit& unit = *packed_->unit;
  unit.scheme->Dequantise(unit.matrix, packed_->slots, quant::Layout::kRuntime, matrix_,
                          static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last), out);
}

}  // namespace syncline::model
