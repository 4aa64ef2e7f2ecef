// Whether the processor multiplies pairs of bf16 and adds them to fp32 by one instruction
// (AVX512_BF16), which Highway 1.0 has no target for.
#pragma once

namespace syncline::model {

// Sums of such products flush subnormal numbers to zero.
bool HasBf16Pairs();

// Makes HasBf16Pairs() false, or true again where the processor has it. Not while kernels run.
void AllowBf16PairsForTest(bool allowed);

}  // namespace syncline::model
