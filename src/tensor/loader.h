// Bytes of tensors that are not in memory, on demand.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace syncline::tensor {

// Goes with a list of TensorViews whose `bytes` have the right size and no data. Thread-safe, with a
// buffer for each thread.
class Loader {
 public:
  virtual ~Loader() = default;
  // Bytes [begin, begin + size) of the tensor of that index in the list, in `buffer`, which grows to
  // fit. An error names the file, with expected and actual sizes.
  virtual base::Result<base::ByteSpan> Load(std::size_t tensor, std::uint64_t begin,
                                            std::uint64_t size,
                                            std::vector<std::byte>& buffer) const = 0;
};

}  // namespace syncline::tensor
