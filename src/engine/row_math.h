// Vector arithmetic over one row of logits; the fastest instructions that the processor has are
// chosen at run time.
#pragma once

#include <cstddef>
#include <span>

namespace syncline::engine {

// Index of the largest value, the first of equals; NaN never is the largest. 0 for a row of nothing
// but NaN.
std::size_t ArgMax(std::span<const float> row);

// Σ exp(row[i] - shift). NaN values count as nothing.
double SumOfExp(std::span<const float> row, float shift);

// out[i] = exp(row[i] - shift), and the sum of each kExpBlock of them in block_sums (the last one
// may be shorter).
inline constexpr std::size_t kExpBlock = 512;
void ExpInBlocks(std::span<const float> row, float shift, std::span<float> out,
                 std::span<double> block_sums);

// row[i] *= factor.
void Scale(std::span<float> row, float factor);

}  // namespace syncline::engine
