// The process that clients see: HTTP server, engine and, of several ranks, rank 0.
#pragma once

#include "serve/options.h"
#include "serve/rank_group.h"

namespace syncline::serve {

// Until a signal ends it; the exit status of the process. It does not return where a rank is gone:
// then the process ends from inside.
int ServeModel(const Options& options, const RankSetting& setting);

// Of a rank: --threads, or this node's processors divided among its ranks.
std::uint32_t ThreadsOf(const Options& options, const Placement& placement);

}  // namespace syncline::serve
