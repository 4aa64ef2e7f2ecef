#include "model/cpu_bf16_pairs.h"

#include <atomic>

namespace syncline::model {
namespace {

bool Detect() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

std::atomic<bool> has_pairs = Detect();

}  // namespace

bool HasBf16Pairs() { return has_pairs.load(std::memory_order_relaxed); }

void AllowBf16PairsForTest(bool allowed) { has_pairs = allowed && Detect(); }

}  // namespace syncline::model
