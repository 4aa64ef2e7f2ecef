// The memory of a runner's parameters: the live bytes, and a second arena of the same layout in
// which the next weights are made ready.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "layout/plan.h"
#include "quant/units.h"

namespace syncline::model {

// Not thread-safe by itself: see who may touch what at each method. Parameters are in the order of
// Plan::parameters(), each aligned to kAlignment bytes. Each has a slot of the larger of its load and
// its runtime layout (quant/units.h); the live ones are in the runtime layout whenever a forward
// runs.
class Parameters {
 public:
  static constexpr std::uint64_t kAlignment = 256;

  // Zeros; for a unit that means: in its load layout.
  static base::Result<Parameters> Create(const layout::Plan& plan, const quant::Units& units = {});

  // Read by the forward pass. The addresses hold for the life of this object. Written only while no
  // forward runs.
  std::span<const base::MutableByteSpan> live() const { return live_; }

  // The second arena: addresses, made at the first call. Only slots that are reserved may be
  // touched; their content is what the caller wrote. One caller at a time; the forward pass never
  // looks at it.
  base::Result<std::span<const base::MutableByteSpan>> Staging();
  // Memory for a slot of the second arena, kept until it is released. After Staging(). kNoSpace.
  base::Status ReserveStaging(std::size_t parameter);
  void ReleaseStaging(std::size_t parameter);

  // Copies the whole slots of these parameters from the second arena to the live one. Cannot fail.
  // Only while no forward runs, after Staging().
  void Commit(std::span<const std::size_t> parameters, base::ThreadPool& pool);
  // The other way round, into slots that are reserved.
  void CopyToStaging(std::span<const std::size_t> parameters, base::ThreadPool& pool);

  // For who maps them: parameter i lies at the same offset in both. staging_arena(): after
  // Staging().
  const base::Arena& live_arena() const { return live_arena_; }
  const base::Arena& staging_arena() const { return *staging_arena_; }
  // Gives the memory of both arenas back to the system; the addresses stay. From here to Resume
  // nobody may touch a slot. Only while no forward runs.
  void Release();
  // Takes memory for the live slots again: zeros. kNoSpace: it has none.
  base::Status Resume();

  base::MutableByteSpan live_bytes() const { return live_arena_.bytes(); }  // all slots
  std::uint64_t bytes() const { return live_arena_.bytes().size(); }

 private:
  explicit Parameters(base::Arena live) : live_arena_(std::move(live)) {}
  std::vector<base::MutableByteSpan> Slots(const base::Arena& arena) const;

  std::vector<std::uint64_t> sizes_;
  base::Arena live_arena_;
  std::optional<base::Arena> staging_arena_;
  std::vector<base::MutableByteSpan> live_;
  std::vector<base::MutableByteSpan> staging_;
  std::vector<bool> reserved_;  // by parameter, in the second arena
};

}  // namespace syncline::model
