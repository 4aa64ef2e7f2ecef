// For tests: small configurations of every architecture, drawn at random, with the tensors that
// transformers' save_pretrained writes for them, listed by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/plan.h"

namespace syncline::model {

struct SmallModel {
  std::string config;                       // config.json; empty for an architecture not known here
  std::vector<layout::TensorSpec> tensors;  // of the checkpoint, in no order
};

// The same seed, the same model. `dtype`: of all tensors. Sizes divide by 4 where `even`, and
// mostly do not otherwise.
SmallModel MakeSmallModel(std::string_view architecture, std::uint32_t seed, tensor::Dtype dtype,
                          bool even);

}  // namespace syncline::model
