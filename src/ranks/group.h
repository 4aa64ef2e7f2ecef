// The words of the room: the processes ("ranks") of one engine and what they send each other.
//
// Rank 0 leads, all others follow. Nodes are hosts; several ranks may run on one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace syncline::ranks {

constexpr std::uint32_t kMaxRanks = 1024;

struct Group {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;  // number of ranks
  std::uint32_t node_rank = 0;
  std::uint32_t nodes = 1;
};

// kInvalidArgument if the numbers do not fit together.
base::Status Check(const Group& group);

// A follower, as the leader sees it.
struct Peer {
  std::uint32_t rank = 0;
  std::uint32_t node_rank = 0;
  std::string host;  // numeric address that it came from
  std::int64_t pid = 0;
};

// `kind` and `payload` mean nothing to this room.
struct Message {
  std::uint32_t kind = 0;
  std::uint64_t id = 0;  // what to give to Follower::Reply; 0: no reply is expected
  std::vector<std::byte> payload;
};

}  // namespace syncline::ranks
