#include "layout/runs.h"

#include <algorithm>
#include <cstring>

#include "base/stream_copy.h"

namespace syncline::layout {
namespace {

// The dimensions of a box that are longer than 1, innermost first. In bits, because elements may be
// smaller than a byte.
struct Strides {
  struct Dimension {
    std::uint64_t extent = 0;
    std::uint64_t stride = 0;
  };
  std::uint64_t offset = 0;
  std::vector<Dimension> dimensions;
};

Strides FindStrides(std::uint64_t element_bits, const Place& place) {
  Strides strides;
  std::uint64_t stride = element_bits;
  for (std::size_t d = place.shape.size(); d-- > 0;) {
    const std::uint64_t extent = place.box.end[d] - place.box.begin[d];
    strides.offset += place.box.begin[d] * stride;
    if (extent > 1) strides.dimensions.push_back({.extent = extent, .stride = stride});
    stride *= place.shape[d];
  }
  return strides;
}

}  // namespace

Runs FindRuns(tensor::Dtype dtype, const Place& from, const Place& to) {
  std::uint64_t run_bits = tensor::Bits(dtype);
  const Strides from_strides = FindStrides(run_bits, from);
  const Strides to_strides = FindStrides(run_bits, to);
  Runs runs{.from = from_strides.offset / 8, .to = to_strides.offset / 8};
  const std::size_t dimensions =
      std::min(from_strides.dimensions.size(), to_strides.dimensions.size());
  for (std::size_t i = 0; i < dimensions; ++i) {
    const auto& [extent, from_stride] = from_strides.dimensions[i];
    const std::uint64_t to_stride = to_strides.dimensions[i].stride;
    if (from_stride == run_bits && to_stride == run_bits) {
      run_bits *= extent;
    } else {
      runs.loops.push_back(
          {.count = extent, .from_stride = from_stride / 8, .to_stride = to_stride / 8});
    }
  }
  runs.run = run_bits / 8;
  return runs;
}

std::uint64_t RunBytes(const Runs& runs) {
  std::uint64_t bytes = runs.run;
  for (const Runs::Loop& loop : runs.loops) bytes *= loop.count;
  return bytes;
}

std::vector<Runs> CutRuns(const Runs& runs, std::uint64_t bytes) {
  const std::uint64_t all = RunBytes(runs);
  if (all / 2 <= bytes) return {runs};
  std::vector<Runs> parts;
  if (runs.loops.empty()) {
    for (std::uint64_t at = 0; at < runs.run; at += bytes) {
      parts.push_back({.from = runs.from + at,
                       .to = runs.to + at,
                       .run = std::min(bytes, runs.run - at),
                       .loops = {}});
    }
    return parts;
  }
  const Runs::Loop& outer = runs.loops.back();
  const std::uint64_t step = std::max<std::uint64_t>(1, bytes / (all / outer.count));
  for (std::uint64_t first = 0; first < outer.count; first += step) {
    Runs& part = parts.emplace_back(runs);
    part.from += first * outer.from_stride;
    part.to += first * outer.to_stride;
    part.loops.back().count = std::min(step, outer.count - first);
  }
  return parts;
}

void CopyRuns(const Runs& runs, const std::byte* from, std::byte* to) {
  ForEachRun(runs,
             [&](std::uint64_t a, std::uint64_t b) { std::memcpy(to + b, from + a, runs.run); });
}

void StreamRuns(const Runs& runs, const std::byte* from, std::byte* to) {
  ForEachRun(runs, [&](std::uint64_t a, std::uint64_t b) {
    base::StreamCopy(to + b, from + a, runs.run);
  });
}

void FillRuns(const Runs& runs, std::byte* to) {
  ForEachRun(runs, [&](std::uint64_t, std::uint64_t b) { std::memset(to + b, 0, runs.run); });
}

}  // namespace syncline::layout
