// How the values of a tensor move from one version to the next: which elements change, and how far,
// in units in the last place (ulp).
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace syncline::delta {

// Counts of elements. A step is the difference of two floating-point numbers of the same sign in
// the order of all numbers of their type: 1 for neighbours.
struct StepHistogram {
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;       // in any bit; of a floating type, all of the following together
  std::uint64_t sign_changes = 0;  // the sign bit differs, of zeros too, and neither is NaN
  std::uint64_t nan = 0;           // one of both is NaN, or both are with other bits
  std::array<std::uint64_t, 65> steps = {};  // [k]: steps in [FirstOfBin(k), LastOfBin(k)]

  StepHistogram& operator+=(const StepHistogram& other);
  bool operator==(const StepHistogram&) const = default;
};

// The bins of a histogram are 1, 2, 3–4, 5–8, 9–16 …
constexpr std::uint64_t FirstOfBin(std::size_t bin) {
  return bin == 0 ? 1 : (std::uint64_t{1} << (bin - 1)) + 1;
}
constexpr std::uint64_t LastOfBin(std::size_t bin) {
  return bin == 64 ? ~std::uint64_t{0} : std::uint64_t{1} << bin;
}

// Do the elements of that type have steps? True for F64, F32, F16, BF16 and the floats of 8 bits;
// of other types changes are counted, but not how far they go.
bool HasSteps(tensor::Dtype dtype);

// Adds the elements of two images of the same piece of a tensor: whole elements, as many bytes of
// each. Elements of 4 and 6 bits are counted by the byte.
void AddSteps(base::ByteSpan old_bytes, base::ByteSpan new_bytes, tensor::Dtype dtype,
              StepHistogram& histogram);

}  // namespace syncline::delta
