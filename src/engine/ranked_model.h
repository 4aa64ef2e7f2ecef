// One model over several ranks: rank 0's own part, and the word to the others to compute theirs.
#pragma once

#include <functional>
#include <memory>

#include "model/model.h"
#include "ranks/follower.h"
#include "ranks/leader.h"

namespace syncline::engine {

// On rank 0. `own` is rank 0's part; `leader` must outlive the model. Parameters and plan are those
// of rank 0.
//
// When the group fails, Forward returns kUnavailable with the leader's reason. A running step ends
// because whoever hears of the failure aborts the mesh that sums go over (ranks::Mesh::Abort).
std::unique_ptr<model::Model> MakeRankedModel(std::unique_ptr<model::Model> own,
                                              ranks::Leader& leader);

// On every other rank: does what comes in the stream of commands until it ends. `other` does what is
// not the engine's (kinds from kFirstOther on), on the same thread, between two steps. An error means
// that the group has failed, or that this rank could not do its part; the leader knows then.
base::Status FollowCommands(ranks::Follower& follower, model::Model& model,
                            const std::function<void(ranks::Message)>& other);

}  // namespace syncline::engine
