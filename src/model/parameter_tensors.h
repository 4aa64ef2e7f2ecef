// Parameters seen as tensors: views of memory that is laid out by a plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "layout/plan.h"

namespace syncline::model {

// kIncompatible for a type that is not served.
base::Result<at::ScalarType> ScalarTypeOf(tensor::Dtype dtype);

// Both must outlive it. The tensors stay valid as long as the memory.
class ParameterTensors {
 public:
  // Of every parameter the type must be one that ScalarTypeOf knows.
  ParameterTensors(const layout::Plan& plan, std::span<const base::MutableByteSpan> memory)
      : plan_(plan), memory_(memory) {}

  // Undefined for Plan::npos: one that the model has not.
  at::Tensor operator[](std::size_t parameter) const;

 private:
  const layout::Plan& plan_;
  std::span<const base::MutableByteSpan> memory_;
};

}  // namespace syncline::model
