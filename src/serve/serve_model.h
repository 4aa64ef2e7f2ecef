// The process that clients see: HTTP server, engine and, of several ranks, rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "serve/options.h"
#include "serve/rank_group.h"
#include "transport/transfer_engine.h"

namespace syncline::serve {

// Until a signal ends it; the exit status of the process. It does not return where a rank is gone:
// then the process ends from inside.
int ServeModel(const Options& options, const RankSetting& setting);

// The transfer engine of a rank at `host`; nothing without --p2p.
std::optional<transport::TransferEngineOptions> TransferEngineOf(const Options& options,
                                                                 const std::string& host);

// Of a rank: --threads, or this node's processors divided among its ranks.
std::uint32_t ThreadsOf(const Options& options, const Placement& placement);

}  // namespace syncline::serve
