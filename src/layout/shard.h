// Which part of a model one rank of an engine holds.
#pragma once

#include <cstdint>

namespace syncline::layout {

// Rank `rank` of `size` in tensor parallelism. The experts of a mixture are first divided among
// `expert_groups` groups of ranks (contiguous ranges of experts, --ep), then each expert among the
// ranks of its group. `expert_groups` divides `size`.
struct Shard {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t expert_groups = 1;

  std::uint32_t expert_shards() const { return size / expert_groups; }
  std::uint32_t expert_group() const { return rank / expert_shards(); }
  std::uint32_t expert_shard() const { return rank % expert_shards(); }
  bool operator==(const Shard&) const = default;
};

}  // namespace syncline::layout
