// The weights of a rank that follows: does what rank 0 asks of them.
#pragma once

#include <memory>
#include <string>

#include "base/file.h"
#include "ranks/follower.h"

namespace syncline::model {
class Model;
}

namespace syncline::update {

// All must outlive it. OnCommand is for the thread that computes (engine::FollowCommands); what is
// slow runs on threads of its own.
class FollowingWeights {
 public:
  // Takes over the follower's OnWork.
  static std::unique_ptr<FollowingWeights> Create(base::FileSystem& files, model::Model& model,
                                                  ranks::Follower& follower,
                                                  std::string launch_path);
  // Cancels what runs and waits for it.
  virtual ~FollowingWeights() = default;

  virtual void OnCommand(ranks::Message message) = 0;
};

}  // namespace syncline::update
