// A process that is a rank other than the first: it has no HTTP server and does what rank 0 says.
#pragma once

#include "serve/options.h"
#include "serve/rank_group.h"

namespace syncline::serve {

// Until rank 0 ends the group; the exit status of the process. It does not return where the group
// fails: then the process ends from inside.
int FollowRank(const Options& options, RankSetting setting);

}  // namespace syncline::serve
