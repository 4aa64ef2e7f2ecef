// A named, packed tensor in somebody else's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace syncline::tensor {

struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;
  base::ByteSpan bytes;  // row-major without gaps; ByteCount(dtype, shape) of them
};

}  // namespace syncline::tensor
