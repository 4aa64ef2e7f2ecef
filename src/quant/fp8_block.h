// Block-wise fp8 as in DeepSeek's checkpoints: weight e4m3 [N, K], and one scale for each block of
// 128 x 128 of a checkpoint tensor, by which its values are multiplied. Blocks at the edges of a
// tensor are short, also where tensors are stacked: each part has scale rows of its own.
//
//   slot               load                                    runtime of "fp8-block-ue8m0"
//   weight             F8_E4M3 [N, K]                          the same
//   weight_scale_inv   F32 [sum of ceil(part / 128),           I32 [N, ceil(Kb / 4)]
//                           Kb = ceil(K / 128)]
//
// with a leading dimension of experts where there are some. "fp8-block" runs on the load layout.
//
// DeepGEMM reads scales that are powers of two (UE8M0: an exponent byte e for 2^(e - 127)),
// repeated for every row. Column blocks 4j to 4j + 3 of a row are one element, the lowest block in
// its lowest byte; columns follow one another in memory (MN-major), each padded with zeros to a
// multiple of 4 rows, for every expert apart. Bytes of column blocks that do not exist are zero.
//
// Process of "fp8-block-ue8m0", for each block alone:
//   * a scale that is a power of two already (2^-126 to 2^127) is only packed;
//   * else the block is quantised anew: x = bf16(q * scale), amax = the largest |x|, at least 1e-4;
//     scale' = amax / 448 rounded up to a power of two; q' = e4m3(x / scale'), nearest, ties to
//     even, at most 448. It rounds, so it is not exact. A NaN stays one and does not count for
//     amax.
// Restore takes the scale of a block from its first row; so what has been processed once is no
// longer changed by either, bit for bit.
//
// Source: SGLang's requantisation for DeepGEMM; DeepGEMM's layout of scales.
#pragma once

#include <memory>

#include "quant/scheme.h"

namespace syncline::quant {

std::shared_ptr<const Scheme> Fp8Block();
std::shared_ptr<const Scheme> Fp8BlockUe8m0();

}  // namespace syncline::quant
