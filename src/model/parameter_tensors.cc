#include "model/parameter_tensors.h"

#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <vector>

namespace syncline::model {

base::Result<at::ScalarType> ScalarTypeOf(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::kBF16:
      return at::kBFloat16;
    case tensor::Dtype::kF16:
      return at::kHalf;
    case tensor::Dtype::kF32:
      return at::kFloat;
    default:
      return base::Fail(base::Code::kIncompatible,
                        fmt::format("weights of type {} are not served; BF16, F16 and F32 are",
                                    tensor::Name(dtype)));
  }
}

at::Tensor ParameterTensors::operator[](std::size_t parameter) const {
  if (parameter == kNone) return {};
  const layout::TensorSpec& spec = decoder_.plan.parameters()[parameter];
  const std::vector<std::int64_t> shape(spec.shape.begin(), spec.shape.end());
  return at::from_blob(memory_[parameter].data(), shape, ScalarTypeOf(spec.dtype).value());
}

WeightMatrix ParameterTensors::Matrix(const LinearParameters& linear) const {
  if (linear.unit == kNone) return WeightMatrix((*this)[linear.weight]);
  const auto slots = decoder_.units.SlotsOf(linear.unit, memory_);
  return {decoder_.units.units()[linear.unit],
          {slots.begin(), slots.end()},
          ScalarTypeOf(decoder_.activation).value()};
}

}  // namespace syncline::model
