// What the CPU kernels (cpu_*.h) share. They work on plain memory, know neither tensors nor
// threads, and are compiled for every vector width of the processor family; the widest that the
// processor has is chosen at run time. On x86 it needs SSE4.
//
// T of a kernel is Bf16 or float. Arithmetic is fp32; "rounded" means to T, to nearest even.
#pragma once

#include <cstdint>

// To be defined before Highway's first header is included. Kernels shuffle within blocks of four
// lanes, which the scalar target has not, and keep vectors in arrays, which vectors of a size
// unknown to the compiler do not allow.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

namespace syncline::model {

using Bf16 = std::uint16_t;  // its bits

}  // namespace syncline::model
