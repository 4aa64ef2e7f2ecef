// Views of a storage as torch has them: elements at offset + Σ index · stride.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "payload/classes.h"

namespace syncline::payload {

inline constexpr std::size_t kMaxDimensions = 64;

struct View {
  const ElementType* element = nullptr;
  base::ByteSpan storage;
  std::uint64_t offset = 0;  // this and the strides in elements
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // as many; 0 where it is expanded

  std::uint64_t bytes = 0;  // of the packed tensor; set by CheckView
};

// Does every element lie in the storage? Sets `bytes`. kInvalidArgument with the sizes.
base::Status CheckView(View& view);

// For a view that was checked:
// Are its elements one run in row-major order? Then `Run` is that run.
bool IsPacked(const View& view);
base::ByteSpan Run(const View& view);
// Writes the elements row-major; `to` has view.bytes bytes.
void Pack(const View& view, base::MutableByteSpan to);

}  // namespace syncline::payload
