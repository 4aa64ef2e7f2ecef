// The forms that the units of a runner accept (layout/forms.h):
//
//   f32, f16 or bf16 for another of these   each value rounded (nearest, ties to even); not for the
//                                           tensors of a unit
//   a scale of block-wise fp8 as i32        [rows of the weight, ceil(column blocks / 4)]: four
//                                           exponents of powers of two in each element, the lowest
//                                           block in the lowest byte, repeated for each of a
//                                           block's rows (DeepGEMM's UE8M0); bytes of blocks that
//                                           do not exist are not looked at
//   a scale of block-wise fp8 as f8_e8m0    of the same shape: exponents of powers of two
//
// What is accepted depends on names and the plan's tensors alone, so all ranks accept the same.
#pragma once

#include <memory>

#include "layout/forms.h"
#include "layout/plan.h"
#include "quant/units.h"

namespace syncline::quant {

// `plan` must outlive it.
std::unique_ptr<layout::Forms> MakeForms(const layout::Plan& plan, const Units& units);

}  // namespace syncline::quant
