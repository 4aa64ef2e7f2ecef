// For tests: units of quantised weights with random bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "quant/units.h"

namespace syncline::model {

// A unit on its own, with the memory of its slots in the runtime layout.
class SmallUnit {
 public:
  SmallUnit(std::shared_ptr<const quant::Scheme> scheme, quant::Matrix matrix, std::uint32_t seed);

  const quant::Unit& unit() const { return unit_; }
  std::vector<base::ByteSpan> slots() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  quant::Unit unit_;
  std::vector<std::vector<std::byte>> bytes_;
};

// Random bytes of a tensor, as a scheme's slots or plain weights have them: any integers, finite
// fp8 values, floats around zero, and scales (`is_scale`) that are positive and small.
void FillRandom(tensor::Dtype dtype, bool is_scale, std::uint32_t seed,
                base::MutableByteSpan bytes);

}  // namespace syncline::model
