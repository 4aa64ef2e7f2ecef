// Matrix products of few rows with a weight matrix that lies in memory as [outputs, inputs]: reads
// each weight once from memory, for all rows.
#pragma once

#include <cstddef>

#include "model/cpu_types.h"

namespace syncline::model {

struct LinearProblem {
  const Bf16* x = nullptr;       // [rows, inputs]
  const Bf16* weight = nullptr;  // [outputs, inputs]
  const Bf16* bias = nullptr;    // [outputs], or null
  std::size_t rows = 0;
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::size_t stride = 0;  // outputs from one row of `out` to the next; 0: `outputs`
};

// Outputs are computed in units of four (the last unit may be smaller), which threads can share out
// among them.
inline std::size_t LinearUnits(const LinearProblem& problem) { return (problem.outputs + 3) / 4; }

// Writes x · weightᵀ + bias for the outputs of units [first, last) into `out`, [rows, outputs] or a
// part of the columns of such a matrix. The sums are fp32; only the first form rounds them. A row's
// values do not depend on the other rows or on the division into units.
void LinearOutputs(const LinearProblem& problem, std::size_t first, std::size_t last, Bf16* out);
void LinearOutputs(const LinearProblem& problem, std::size_t first, std::size_t last, float* out);

}  // namespace syncline::model
