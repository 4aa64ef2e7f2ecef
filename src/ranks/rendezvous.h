// How a group forms: followers find the leader, prove that they belong, and take their places.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/follower.h"
#include "ranks/group.h"
#include "ranks/leader.h"
#include "ranks/protocol.h"
#include "ranks/socket.h"

namespace syncline::ranks {

// A follower that is there, and its two connections, welcomed.
struct Joined {
  Peer peer;
  Descriptor commands;
  Descriptor work;
};

// The leader's side. All followers in the order of their ranks; errors as in Leader::Join.
base::Result<std::vector<Joined>> Gather(const Listener& listener, const LeaderOptions& options);

// The follower's side.
struct Seat {
  Descriptor commands;
  Descriptor work;
  Welcome welcome;
};
// Errors as in Follower::Join.
base::Result<Seat> TakeSeat(const FollowerOptions& options);

}  // namespace syncline::ranks
