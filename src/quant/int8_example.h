// For docs/guide/add-a-scheme.md and the contract suite: 8-bit integers with one scale for each
// output. No configuration leads to it.
//
//   slot           load = runtime
//   weight         I8 [N, K]
//   weight_scale   F32 [N, 1]
#pragma once

#include <memory>

#include "quant/scheme.h"

namespace syncline::quant {

std::shared_ptr<const Scheme> Int8Example();

}  // namespace syncline::quant
