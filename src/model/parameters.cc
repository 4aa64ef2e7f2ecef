#include "model/parameters.h"

#include <algorithm>

namespace syncline::model {
namespace {

std::uint64_t AlignUp(std::uint64_t bytes) {
  return (bytes + Parameters::kAlignment - 1) / Parameters::kAlignment * Parameters::kAlignment;
}

}  // namespace

base::Result<Parameters> Parameters::Create(const layout::Plan& plan) {
  std::uint64_t total = 0;
  for (const layout::TensorSpec& parameter : plan.parameters()) total += AlignUp(parameter.bytes());
  SYNCLINE_ASSIGN(Arena live, Arena::Create("syncline-weights", total));
  Parameters parameters(std::move(live));
  for (const layout::TensorSpec& parameter : plan.parameters()) {
    parameters.sizes_.push_back(parameter.bytes());
  }
  parameters.live_ = parameters.Slots(parameters.live_arena_);
  return parameters;
}

std::vector<base::MutableByteSpan> Parameters::Slots(const Arena& arena) const {
  std::vector<base::MutableByteSpan> slots;
  std::uint64_t offset = 0;
  for (const std::uint64_t size : sizes_) {
    slots.push_back(arena.bytes().subspan(offset, size));
    offset += AlignUp(size);
  }
  return slots;
}

base::Result<std::span<const base::MutableByteSpan>> Parameters::Staging() {
  if (!staging_arena_) {
    SYNCLINE_ASSIGN(staging_arena_, Arena::Create("syncline-staging", live_arena_.bytes().size()));
    staging_ = Slots(*staging_arena_);
  }
  return staging_;
}

void Parameters::Exchange(base::ThreadPool& pool) {
  // Pieces that stay in a core's cache while they are swapped.
  constexpr std::size_t kPiece = 1 << 20;
  const base::MutableByteSpan live = live_arena_.bytes();
  const base::MutableByteSpan staged = staging_arena_->bytes();
  const std::size_t pieces = (live.size() + kPiece - 1) / kPiece;
  // The loop's body returns no error, so neither does the loop.
  static_cast<void>(pool.ParallelFor(pieces, [&](std::size_t i) -> base::Status {
    const std::size_t begin = i * kPiece;
    const std::size_t size = std::min(kPiece, live.size() - begin);
    std::swap_ranges(live.data() + begin, live.data() + begin + size, staged.data() + begin);
    return {};
  }));
}

}  // namespace syncline::model
