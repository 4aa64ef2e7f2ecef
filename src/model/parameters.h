// The memory of a runner's parameters: the live bytes, and a second arena of the same layout in
// which the next weights are made ready.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/plan.h"
#include "model/arena.h"

namespace syncline::model {

// Not thread-safe by itself: see who may touch what at each method. Parameters are in the order of
// Plan::parameters(), each aligned to kAlignment bytes.
class Parameters {
 public:
  static constexpr std::uint64_t kAlignment = 256;

  static base::Result<Parameters> Create(const layout::Plan& plan);

  // Read by the forward pass. The addresses hold for the life of this object. Written only while no
  // forward runs.
  std::span<const base::MutableByteSpan> live() const { return live_; }

  // The second arena, made at the first call. Its content is what the last Exchange left or the
  // caller wrote. One caller at a time; the forward pass never looks at it.
  base::Result<std::span<const base::MutableByteSpan>> Staging();

  // Swaps the bytes of both. What was live is in Staging() afterwards, so a second Exchange takes
  // it back. Cannot fail. Only while no forward runs, after Staging().
  void Exchange(base::ThreadPool& pool);

  std::uint64_t bytes() const { return live_arena_.bytes().size(); }

 private:
  explicit Parameters(Arena live) : live_arena_(std::move(live)) {}
  std::vector<base::MutableByteSpan> Slots(const Arena& arena) const;

  std::vector<std::uint64_t> sizes_;
  Arena live_arena_;
  std::optional<Arena> staging_arena_;
  std::vector<base::MutableByteSpan> live_;
  std::vector<base::MutableByteSpan> staging_;
};

}  // namespace syncline::model
