// The weights of a rank that follows: does what rank 0 asks of them.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/file.h"
#include "ranks/follower.h"
#include "update/rank_weights.h"
#include "update/runner.h"

namespace syncline::update {

// All must outlive it. OnCommand is for the thread that computes (engine::FollowCommands); what is
// slow runs on threads of its own.
class FollowingWeights {
 public:
  // Takes over the follower's OnWork. The runners are those of rank 0, in its order.
  // `transfer_timeout`: as in Weights::Options.
  static std::unique_ptr<FollowingWeights> Create(base::FileSystem& files,
                                                  const std::vector<Runner>& runners,
                                                  ranks::Follower& follower,
                                                  RankWeights::Options options,
                                                  std::chrono::milliseconds transfer_timeout);
  // Cancels what runs and waits for it.
  virtual ~FollowingWeights() = default;

  virtual void OnCommand(ranks::Message message) = 0;
};

}  // namespace syncline::update
