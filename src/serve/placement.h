// Which rank of the engine this process is, and where the ranks meet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "ranks/address.h"
#include "ranks/group.h"
#include "serve/options.h"

namespace syncline::serve {

// Ranks find rank 0 through the store that torchrun runs.
struct TorchRendezvous {
  ranks::Address store;
  std::string key;
};

struct Placement {
  ranks::Group group;
  std::uint32_t ranks_here = 1;          // of this node
  bool starts_ranks = false;             // this process starts the other ranks of its node
  ranks::Address rendezvous;             // where rank 0 listens and the others go to
  std::optional<TorchRendezvous> torch;  // others learn `rendezvous` there
  std::string token;                     // of the group; may be empty
};

using Environment = std::function<std::string(const char* name)>;  // empty: not set

// Variables that are read: SYNCLINE_RENDEZVOUS_TOKEN, and torchrun's RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*. Changes
// `options` to what torchrun says of ranks and nodes. kInvalidArgument where both contradict each
// other.
base::Result<Placement> PlaceOf(Options& options, const Environment& environment);

extern const char* const kTokenVariable;

}  // namespace syncline::serve
