// The group of ranks that this process belongs to: formed, used, and taken apart.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "model/collectives.h"
#include "ranks/follower.h"
#include "ranks/launch.h"
#include "ranks/leader.h"
#include "ranks/mesh.h"
#include "serve/placement.h"

namespace syncline::serve {

// What a rank is started with.
struct RankSetting {
  Placement placement;
  std::vector<std::string> arguments;         // of this program
  std::string fingerprint;                    // what all ranks must agree upon
  std::chrono::milliseconds timeout{0};       // until the group must stand
  const base::CancelToken* cancel = nullptr;  // ends the wait for it; may be null
};

// Of this rank, for options as they are after PlaceOf.
RankSetting MakeSetting(const Options& options, Placement placement,
                        std::vector<std::string> arguments);

struct LeadingRanks {
  std::unique_ptr<ranks::Mesh> mesh;  // outlives the leader, whose failure aborts it
  std::unique_ptr<ranks::Leader> leader;
  std::unique_ptr<ranks::Launcher> launcher;  // null: others start the ranks
  std::unique_ptr<model::Collectives> collectives;
  std::string host;  // what this host is called

  // Orderly. After the last use of leader and collectives.
  void End();
};

// On rank 0: starts the other ranks of this node, waits until all ranks of all nodes are there and
// connected. `on_failure`: see ranks::LeaderOptions.
base::Result<std::unique_ptr<LeadingRanks>> Lead(const RankSetting& setting,
                                                 std::function<void(base::Error)> on_failure);

struct FollowingRank {
  std::unique_ptr<ranks::Launcher> launcher;  // null, but on the first rank of its node
  std::unique_ptr<ranks::Follower> follower;
  std::unique_ptr<ranks::Mesh> mesh;
  std::unique_ptr<model::Collectives> collectives;
};

// On every other rank.
base::Result<std::unique_ptr<FollowingRank>> Follow(const RankSetting& setting,
                                                    std::function<void(base::Error)> on_failure);

}  // namespace syncline::serve
