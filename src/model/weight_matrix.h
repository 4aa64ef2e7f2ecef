// The weights of a linear module as the forward pass sees them: a plain tensor, or a unit of
// quantised slots in their runtime layout, which are turned into values a panel of rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "model/cpu_types.h"
#include "quant/units.h"

namespace syncline::model {

// A view: cheap to copy. Quantised ones are on CPU. Thread-safe while nothing writes the memory.
class WeightMatrix {
 public:
  WeightMatrix() = default;  // undefined
  // [outputs, inputs], or [matrices, outputs, inputs].
  explicit WeightMatrix(at::Tensor values) : values_(std::move(values)) {}
  // `unit` must outlive it. `activation`: the type of what it is multiplied with.
  WeightMatrix(const quant::Unit& unit, std::vector<base::ByteSpan> slots,
               at::ScalarType activation);

  bool defined() const { return quantised() || values_.defined(); }
  bool quantised() const { return packed_ != nullptr; }
  std::int64_t outputs() const;
  std::int64_t inputs() const;
  std::int64_t matrices() const;  // 1 where there is no such dimension
  // Type and device of activations.
  at::TensorOptions options() const;

  // One of several matrices.
  WeightMatrix Select(std::int64_t matrix) const;

  // [outputs, inputs]. Of a quantised matrix a new tensor.
  at::Tensor Values() const { return Values(0, outputs()); }
  // The values of rows [first, last), in the type of activations. `first` is a multiple of RowStep().
  at::Tensor Values(std::int64_t first, std::int64_t last) const;

  // Of a quantised one: the values of rows [first, last) as bf16, whatever the activations are.
  // `first` is a multiple of RowStep(), and so is `last` unless it is outputs().
  std::int64_t RowStep() const;
  void Dequantise(std::int64_t first, std::int64_t last, Bf16* out) const;

 private:
  struct Packed {
    const quant::Unit* unit;
    std::vector<base::ByteSpan> slots;
    at::ScalarType activation;
  };

  at::Tensor values_;
  std::shared_ptr<const Packed> packed_;
  std::uint64_t matrix_ = 0;
};

}  // namespace syncline::model
