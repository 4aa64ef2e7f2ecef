// Parameters seen as tensors and weight matrices: views of memory that is laid out by a plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "model/decoder_plan.h"
#include "model/linear_plan.h"
#include "model/weight_matrix.h"

namespace syncline::model {

// kIncompatible for a type that is not served.
base::Result<at::ScalarType> ScalarTypeOf(tensor::Dtype dtype);

// Both must outlive it. The tensors stay valid as long as the memory and the decoder's units.
class ParameterTensors {
 public:
  // Of every parameter that is not in a unit the type must be one that ScalarTypeOf knows. Units are
  // in their runtime layout.
  ParameterTensors(const DecoderPlan& decoder, std::span<const base::MutableByteSpan> memory)
      : decoder_(decoder), memory_(memory) {}

  // Of a parameter in no unit. Undefined for npos: one that the model has not.
  at::Tensor operator[](std::size_t parameter) const;
  // Undefined where the module is not there.
  WeightMatrix Matrix(const LinearParameters& linear) const;

 private:
  const DecoderPlan& decoder_;
  std::span<const base::MutableByteSpan> memory_;
};

}  // namespace syncline::model
