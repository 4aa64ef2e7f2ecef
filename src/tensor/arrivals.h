// Tensors whose bytes come a few at a time, in whatever order they are made.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::tensor {

// Goes with a list of TensorViews whose `bytes` have the right size and no data. One thread.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // The next tensors, by their index in the list, with all their bytes, which stay valid until the
  // next call. Every tensor comes once. None: that was all.
  using Batch = std::vector<std::pair<std::size_t, base::ByteSpan>>;
  virtual base::Result<Batch> Next() = 0;
};

}  // namespace syncline::tensor
