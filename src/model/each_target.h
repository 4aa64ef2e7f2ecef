// For tests: runs a body with the kernels of each vector width that this machine has, and with and
// without its products of bf16 pairs.
#pragma once

// Before Highway's headers.
#include "model/cpu_types.h"

// after it
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "model/cpu_bf16_pairs.h"

namespace syncline::model {

template <typename Body>
void ForEachTarget(const Body& body) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const bool pairs : {false, true}) {
      AllowBf16PairsForTest(pairs);
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + (pairs ? " with pairs" : ""));
      body();
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  AllowBf16PairsForTest(true);
}

}  // namespace syncline::model
