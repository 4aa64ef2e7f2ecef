// Loops on ATen's threads, of which there is one set for everything that the model computes.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace syncline::model {

// Calls f(first, last) for parts that cover [0, count), each on a thread of its own; where the
// whole is not worth waking a thread for, once on the calling one. `cost`: of one index, in units
// of about a nanosecond. What f throws is thrown here.
template <typename F>
void ParallelFor(std::int64_t count, std::int64_t cost, const F& f) {
  constexpr std::int64_t kWorthAThread = 10'000;
  at::parallel_for(0, count,
                   std::max<std::int64_t>(1, kWorthAThread / std::max<std::int64_t>(1, cost)), f);
}

}  // namespace syncline::model
