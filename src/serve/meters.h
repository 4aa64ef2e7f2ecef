// What the server counts; served by /metrics.
#pragma once

#include "base/metrics.h"

namespace syncline::engine {
struct Stats;
}

namespace syncline::serve {

// References into a registry, which must outlive this. Thread-safe.
class Meters {
 public:
  explicit Meters(base::MetricsRegistry& registry);

  // The registry's text, with the gauges set to what the engine says (null: not there).
  std::string Export(const engine::Stats* stats);

  base::Counter& http_requests;
  base::Counter& http_client_errors;
  base::Counter& http_server_errors;
  base::Counter& generations;
  base::Counter& aborted_generations;
  base::Counter& prompt_tokens;
  base::Counter& generated_tokens;
  base::Counter& updates;
  base::Counter& failed_updates;
  base::Counter& unchanged_updates;  // with the weights that were live already
  base::Counter& joined_updates;
  base::Counter& pulls;
  base::Counter& failed_pulls;
  base::Histogram& generation_seconds;
  base::Histogram& first_token_seconds;
  base::Histogram& update_stage_seconds;
  base::Histogram& update_apply_seconds;
  base::Histogram& pause_seconds;

 private:
  base::MetricsRegistry& registry_;
};

}  // namespace syncline::serve
