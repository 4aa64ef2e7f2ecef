// Other forms in which a checkpoint tensor may come than the one that a plan expects: a float type
// that is rounded to the expected one, a scale that the trainer has packed already.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "layout/plan.h"
#include "tensor/dtype.h"

namespace syncline::layout {

// Thread-safe.
class Forms {
 public:
  virtual ~Forms() = default;

  // Can a tensor of the plan come so? Only asked where dtype or shape are not those of the plan.
  virtual bool Accepts(std::size_t tensor, tensor::Dtype dtype, tensor::Shape shape) const = 0;

  // Of a form that is accepted: the bytes as the plan expects them. `bytes` are those of dtype and
  // shape. kInvalidArgument, naming the tensor: the values cannot be what the form says.
  virtual base::Result<std::vector<std::byte>> Convert(std::size_t tensor, tensor::Dtype dtype,
                                                       tensor::Shape shape,
                                                       base::ByteSpan bytes) const = 0;
};

}  // namespace syncline::layout
