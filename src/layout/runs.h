// Copies a box of one row-major array into a box of another, by runs that are as long as the two
// layouts allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/box.h"
#include "tensor/dtype.h"

namespace syncline::layout {

// Where a box lies in an array.
struct Place {
  tensor::Shape shape;  // of the array
  const Box& box;
};

// All offsets and strides in bytes.
struct Runs {
  struct Loop {
    std::uint64_t count = 0;
    std::uint64_t from_stride = 0;
    std::uint64_t to_stride = 0;
  };
  std::uint64_t from = 0;  // the first byte
  std::uint64_t to = 0;
  std::uint64_t run = 0;    // length
  std::vector<Loop> loops;  // over runs, the innermost loop first
};

// The boxes have the same extents up to those of 1, and elements of less than a byte come in whole
// bytes along the innermost dimension (both hold in every Plan).
Runs FindRuns(tensor::Dtype dtype, const Place& from, const Place& to);

// Calls run(from, to) with the offsets of each run of the `loops` innermost loops, from there on.
template <typename Run>
void ForEachRun(const Runs& runs, std::size_t loops, std::uint64_t from, std::uint64_t to,
                const Run& run) {
  if (loops == 0) return run(from, to);
  const Runs::Loop& loop = runs.loops[loops - 1];
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    ForEachRun(runs, loops - 1, from + i * loop.from_stride, to + i * loop.to_stride, run);
  }
}

// Of all loops.
template <typename Run>
void ForEachRun(const Runs& runs, const Run& run) {
  ForEachRun(runs, runs.loops.size(), runs.from, runs.to, run);
}

std::uint64_t RunBytes(const Runs& runs);  // of all runs together

// Cuts runs of more than twice `bytes` along their outermost loop into parts of about so many;
// where an iteration of it has more, a part has that many.
std::vector<Runs> CutRuns(const Runs& runs, std::uint64_t bytes);

// `from` and `to` are the first bytes of the arrays, which do not overlap.
void CopyRuns(const Runs& runs, const std::byte* from, std::byte* to);
// The same for what is not read again soon (base/stream_copy.h).
void StreamRuns(const Runs& runs, const std::byte* from, std::byte* to);
// Makes the bytes that the runs write to zero.
void FillRuns(const Runs& runs, std::byte* to);

}  // namespace syncline::layout
