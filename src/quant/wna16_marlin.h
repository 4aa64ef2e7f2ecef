// 4-bit integers of compressed-tensors ("pack-quantized", symmetric), in the order that Marlin's
// kernels read. value = (nibble - 8) * scale.
//
//   slot            load                                      runtime
//   weight_packed   I32 [N, K / 8]: nibble i of word (n, w)   I32 [K / 16, 2 * N]
//                   is column 8w + i, the lowest first
//   weight_scale    BF16 or F16 [N, K / group]                the same type [K / group, N]
//
// with a leading dimension of experts where there are some; each expert is a matrix of its own.
// N counts the rows of all parts together: kernels see one fused matrix. The load layout is that of
// checkpoints, not SGLang's (which transposes each tensor as it loads it).
//
// The runtime layout of a matrix q[K, N]:
//   weight   in chunks of 64 columns of N. Row kt of the result holds for each chunk the 1024
//            values of K rows 16kt to 16kt + 15: out[x] = in[P[x]], where in[nt * 256 + r * 16 + c]
//            is q[16kt + r, 64 * chunk + 16nt + c], and P = for i < 32, for nt < 4: 256nt +
//            (16 * row + i / 4 + 8 * half) for (row, half) = (s, 0) (s + 8, 0) (s, 1) (s + 8, 1)
//            (s + 1, 0) (s + 9, 0) (s + 1, 1) (s + 9, 1) with s = 2 * (i % 4). Eight values make a
//            word, the first in its lowest nibble.
//   scale    grouped: in chunks of 64 columns out[8i + j] = in[i + 8j]; one group: in chunks of 32
//            out[8i + t] = in[2i + {0, 1, 8, 9, 16, 17, 24, 25}[t]].
//
// Both directions are exact and work in the slots. Besides these they take 32 * K bytes a thread,
// a copy of one matrix's scales, half a megabyte, and a fiftieth of one matrix at most.
//
// Source: the repacking of GPTQ and AWQ weights for Marlin, as SGLang and vLLM do it.
#pragma once

#include <cstdint>
#include <memory>

#include "quant/scheme.h"

namespace syncline::quant {

// group: columns that share a scale; 0: all of a row. Check asks for columns that are a multiple of
// 16 and of the group, rows (of all parts together) that are a multiple of 64, and a group that is
// a multiple of 8.
std::shared_ptr<const Scheme> Wna16Marlin(std::uint64_t group);

}  // namespace syncline::quant
